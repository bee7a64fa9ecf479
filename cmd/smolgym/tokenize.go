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

	"smolgym/httpapi"
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
	t, err := f.coder()
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

// coder turns text into ids and back, here or on the server.
type coder interface {
	encode(text string) ([]int32, error)
	decode(ids []int32) (string, error)
}

type local struct {
	t       *tokenizer.Tokenizer
	special bool
}

func (l local) encode(text string) ([]int32, error) { return l.t.Encode(text, l.special), nil }
func (l local) decode(ids []int32) (string, error)  { return l.t.Decode(ids, false), nil }

type remote struct{ f *tokenizeFlags }

func (r remote) ask(req httpapi.TokenizeRequest) (answer httpapi.TokenizeResponse, err error) {
	req.Model = r.f.model
	body, err := json.Marshal(req)
	if err != nil {
		return answer, err
	}
	return answer, r.f.post("/smolgym/v1/tokenize", body, &answer)
}

func (r remote) encode(text string) ([]int32, error) {
	answer, err := r.ask(httpapi.TokenizeRequest{Text: &text, Special: r.f.special})
	return answer.IDs, err
}

func (r remote) decode(ids []int32) (string, error) {
	answer, err := r.ask(httpapi.TokenizeRequest{IDs: &ids, Special: true})
	if err != nil || answer.Text == nil {
		return "", err
	}
	return *answer.Text, nil
}

// coder picks the tokenizer: a file's, or a model's on the server.
func (f *tokenizeFlags) coder() (coder, error) {
	if (f.model == "") == (f.file == "") {
		return nil, usagef("tokenize takes one of --model NAME and --tokenizer FILE")
	}
	if f.model != "" {
		return remote{f}, nil
	}
	path := f.file
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path += "/tokenizer.json"
	}
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil, &exitError{code: exitNotFound, err: fmt.Errorf("read tokenizer: %w", err)}
	}
	if err != nil {
		return nil, fmt.Errorf("read tokenizer: %w", err)
	}
	t, err := tokenizer.Load(data)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer %s: %w", path, err)
	}
	return local{t, f.special}, nil
}

func (f *tokenizeFlags) once(t coder, in io.Reader, args []string, out io.Writer) error {
	text := strings.Join(args, " ")
	if len(args) == 0 {
		data, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		text = string(data)
	}
	if !f.decode {
		ids, err := t.encode(text)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, strings.Trim(fmt.Sprint(ids), "[]"))
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
	back, err := t.decode(ids)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, back)
	return err
}

func (f *tokenizeFlags) lines(t coder, in io.Reader, out io.Writer) error {
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

func (f *tokenizeFlags) line(t coder, line []byte, enc *json.Encoder) error {
	if f.decode {
		var ids []int32
		if err := json.Unmarshal(line, &ids); err != nil {
			return fmt.Errorf("not a list of ids: %w", err)
		}
		text, err := t.decode(ids)
		if err != nil {
			return err
		}
		return enc.Encode(map[string]string{"text": text})
	}
	var text string
	if err := json.Unmarshal(line, &text); err != nil {
		return fmt.Errorf("not a JSON string: %w", err)
	}
	ids, err := t.encode(text)
	if err != nil {
		return err
	}
	if ids == nil {
		ids = []int32{}
	}
	return enc.Encode(map[string][]int32{"ids": ids})
}
