package appliance

import "smolgym/tokenizer"

// vocabularies are the files a tokenizer is read from, in order of preference,
// each with its reader.
var vocabularies = []struct {
	file string
	load func([]byte) (*tokenizer.Tokenizer, error)
}{
	{"tokenizer.json", tokenizer.Load},
	{"tokenizer.model", tokenizer.LoadSentencePiece},
}

// tokenizer reads the folder's tokenizer; file is "" when there is none. An error
// of load names what the file has that isn't known; of read, what went wrong.
func (s folder) tokenizer() (tok *tokenizer.Tokenizer, file string, load, read error) {
	for _, v := range vocabularies {
		text, ok, err := s.read(v.file, maxTokenizerBytes)
		if err != nil {
			return nil, v.file, nil, err
		}
		if ok {
			tok, err = v.load(text)
			return tok, v.file, err, nil
		}
	}
	return nil, "", nil, nil
}
