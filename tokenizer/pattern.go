package tokenizer

import "errors"

func compilePattern(p string) (matcher, error) { return nil, errors.New("unknown pattern") }
