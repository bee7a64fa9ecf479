package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"smolgym/tokenizer"
)

type tokenizeFlags struct {
	client
	model, file            string
	decode, jsonl, special bool
}

func newTokenize() *cobra.Command {
	var f tokenizeFlags
	cmd := &cobra.Command{
		Use:   "tokenize (--model NAME | --tokenizer FILE) [TEXT]",
		Short: "turn text into token ids and back",
		Long: `Encodes TEXT, or standard input when there is none, and prints the ids; with
--decode it takes ids and prints text. The text of special tokens is recognised.

With --jsonl every line of standard input is one JSON value — a string to
encode, with --decode a list of ids — and every line out is {"ids":[…]} or
{"text":"…"}.`,
		Example: "smolgym tokenize --tokenizer ./folder/tokenizer.json 'Once upon a time'\nsmolgym tokenize --model me/mymodel --decode 1 403 407\nsmolgym tokenize --model me/mymodel --jsonl --special < strings.jsonl",
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.model, "model", "", "a model on the server")
	fl.StringVar(&f.file, "tokenizer", "", "a tokenizer.json file, or a folder with one")
	fl.BoolVar(&f.decode, "decode", false, "ids to text")
	fl.BoolVar(&f.jsonl, "jsonl", false, "one JSON value a line, in and out")
	fl.BoolVar(&f.special, "special", false, "add the special tokens of the post-processor")
	f.client.flags(cmd)
	return cmd
}

func (f *tokenizeFlags) run(cmd *cobra.Command, args []string) error {
	t, err := f.load()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	if f.jsonl {
		if len(args) > 0 {
			return usagef("tokenize --jsonl reads standard input, got the argument %q", args[0])
		}
		err = f.lines(t, cmd.InOrStdin(), out)
	} else {
		err = f.once(t, cmd.InOrStdin(), args, out)
	}
	if err != nil {
		return err
	}
	return out.Flush()
}

// load reads the tokenizer from a file or from the server.
func (f *tokenizeFlags) load() (*tokenizer.Tokenizer, error) {
	if (f.model == "") == (f.file == "") {
		return nil, usagef("tokenize takes one of --model NAME and --tokenizer FILE")
	}
	var data []byte
	var err error
	if f.file != "" {
		path := f.file
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			path += "/tokenizer.json"
		}
		if data, err = os.ReadFile(path); os.IsNotExist(err) {
			return nil, &exitError{code: exitNotFound, err: fmt.Errorf("read tokenizer: %w", err)}
		}
	} else {
		data, err = f.get(modelPath(f.model) + "/files/tokenizer.json")
	}
	if err != nil {
		return nil, err
	}
	t, err := tokenizer.Load(data)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	return t, nil
}

func (f *tokenizeFlags) once(t *tokenizer.Tokenizer, in io.Reader, args []string, out io.Writer) error {
	text := strings.Join(args, " ")
	if len(args) == 0 {
		data, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		text = string(data)
	}
	if !f.decode {
		_, err := fmt.Fprintln(out, strings.Trim(fmt.Sprint(t.Encode(text, f.special)), "[]"))
		return err
	}
	var ids []int32
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,[]\n\t", r) }) {
		var id int32
		if _, err := fmt.Sscanf(word, "%d", &id); err != nil || fmt.Sprint(id) != word {
			return usagef("tokenize --decode: %q is no token id", word)
		}
		ids = append(ids, id)
	}
	_, err := fmt.Fprintln(out, t.Decode(ids, false))
	return err
}

func (f *tokenizeFlags) lines(t *tokenizer.Tokenizer, in io.Reader, out io.Writer) error {
	r := bufio.NewReaderSize(in, 1<<20)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			if werr := f.line(t, line, enc); werr != nil {
				return fmt.Errorf("standard input, line %d: %w", n, werr)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (f *tokenizeFlags) line(t *tokenizer.Tokenizer, line []byte, enc *json.Encoder) error {
	if f.decode {
		var ids []int32
		if err := json.Unmarshal(line, &ids); err != nil {
			return fmt.Errorf("not a list of ids: %w", err)
		}
		return enc.Encode(map[string]string{"text": t.Decode(ids, false)})
	}
	var text string
	if err := json.Unmarshal(line, &text); err != nil {
		return fmt.Errorf("not a JSON string: %w", err)
	}
	ids := t.Encode(text, f.special)
	if ids == nil {
		ids = []int32{}
	}
	return enc.Encode(map[string][]int32{"ids": ids})
}
