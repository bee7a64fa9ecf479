// Package rack holds the model that ships in the binary.
//
// It was trained by SmolGym itself over its own API; recipe/ has the scripts, the log
// and the evaluation, small/ the result in Hugging Face form.
package rack

import (
	"embed"
	"io/fs"
)

// Name is what the embedded model is called.
const Name = "rack/small"

//go:embed small
var files embed.FS

// Small is the model's folder: config.json, model.safetensors, tokenizer.json and side files.
func Small() fs.FS {
	sub, err := fs.Sub(files, "small")
	if err != nil {
		panic(err) // the folder is part of this package
	}
	return sub
}
