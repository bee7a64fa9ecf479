package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

type chatFlags struct {
	client
	req     httpapi.ChatRequest
	system  string
	message string
	seed    int64
	plain   bool // told already
}

func newChat() *cobra.Command {
	var f chatFlags
	cmd := &cobra.Command{
		Use:   "chat NAME|tinker://…",
		Short: "talk with a model or a checkpoint",
		Long: `Sends what you type to a model or checkpoint and prints the answer as it comes, by the
model's own chat template. A model without one goes on with your text instead; that is
said. A line is a message; an empty line or the end of the input ends the conversation.
With --message there is one answer and no conversation.`,
		Example: "smolgym chat me/mymodel\nsmolgym chat tinker://0f9c…:train:0/weights/final --message \"hello\" --temperature 0 --json",
		Args:    exactArgs("NAME or tinker://…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.req.Model = args[0]
			if strings.HasPrefix(args[0], tinkerScheme) {
				if _, err := checkpointRoute(args[0]); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("seed") {
				f.req.Seed = &f.seed
			}
			return f.run(cmd)
		},
	}
	f.jsonFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.system, "system", "", "a system message to begin with")
	fl.StringVarP(&f.message, "message", "m", "", "one message to answer, instead of a conversation")
	fl.IntVar(&f.req.MaxTokens, "max-tokens", 512, "most tokens of an answer")
	fl.Float64Var(&f.req.Temperature, "temperature", 0.7, "0 is greedy")
	fl.Float64Var(&f.req.TopP, "top-p", 1, "keep the most likely tokens of this total probability")
	fl.Int64Var(&f.seed, "seed", 0, "seed of the answer (default: a new one each time)")
	return cmd
}

func (f *chatFlags) run(cmd *cobra.Command) error {
	if f.req.MaxTokens < 1 {
		return usagef("--max-tokens %d: give at least 1", f.req.MaxTokens)
	}
	if f.req.Temperature < 0 || f.req.TopP <= 0 || f.req.TopP > 1 {
		return usagef("--temperature is 0 or more, --top-p more than 0 and at most 1")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if f.system != "" {
		f.req.Messages = append(f.req.Messages, httpapi.ChatMessage{Role: "system", Content: f.system})
	}
	if cmd.Flags().Changed("message") {
		return f.turn(ctx, cmd, f.message)
	}
	if err := f.exists(); err != nil { // before a person types to nobody
		return err
	}
	lines := bufio.NewScanner(cmd.InOrStdin())
	lines.Buffer(nil, 1<<20)
	for {
		fmt.Fprint(cmd.ErrOrStderr(), "> ")
		if !lines.Scan() || lines.Text() == "" {
			fmt.Fprintln(cmd.ErrOrStderr())
			return lines.Err()
		}
		if err := f.turn(ctx, cmd, lines.Text()); err != nil {
			return err
		}
	}
}

// exists asks the server for the model or checkpoint.
func (f *chatFlags) exists() error {
	route := modelPath(f.req.Model)
	if strings.HasPrefix(f.req.Model, tinkerScheme) {
		var err error
		if route, err = checkpointRoute(f.req.Model); err != nil {
			return err
		}
	}
	_, err := f.get(route)
	return err
}

// turn sends the conversation and prints the answer, which becomes part of it.
func (f *chatFlags) turn(ctx context.Context, cmd *cobra.Command, text string) error {
	f.req.Messages = append(f.req.Messages, httpapi.ChatMessage{Role: "user", Content: text})
	body, err := json.Marshal(f.req)
	if err != nil {
		return err
	}
	resp, err := f.open(ctx, http.MethodPost, "/smolgym/v1/chat", bytes.NewReader(body), http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer strings.Builder
	start, end, err := f.read(cmd, resp.Body, &answer)
	if err != nil {
		if ctx.Err() != nil {
			return &exitError{code: exitFailed, err: errors.New("interrupted")}
		}
		return err
	}
	f.req.Messages = append(f.req.Messages, httpapi.ChatMessage{Role: "assistant", Content: answer.String()})
	if f.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"text": answer.String(), "plain": start.Plain,
			"prompt_tokens": start.PromptTokens, "tokens": end.Tokens, "finish": end.Finish, "seed": end.Seed})
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout())
	return err
}

// read prints the events of one answer as they come.
func (f *chatFlags) read(cmd *cobra.Command, r io.Reader, answer *strings.Builder) (start, end httpapi.ChatEvent, err error) {
	for d := json.NewDecoder(r); ; {
		var e httpapi.ChatEvent
		if err := d.Decode(&e); err != nil {
			return start, end, fmt.Errorf("the answer broke off: %w", err)
		}
		switch e.Type {
		case "start":
			if start = e; e.Plain && !f.plain {
				f.plain = true
				fmt.Fprintf(cmd.ErrOrStderr(), "note: %s has no chat template; it goes on with your text\n", f.req.Model)
			}
		case "text":
			answer.WriteString(e.Text)
			if !f.asJSON {
				if _, err := fmt.Fprint(cmd.OutOrStdout(), safe(e.Text)); err != nil {
					return start, end, err
				}
			}
		case "error":
			return start, end, errors.New(e.Detail)
		case "end":
			return start, e, nil
		}
	}
}

// safe drops what a terminal would obey, but for line ends and tabs.
func safe(text string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}
