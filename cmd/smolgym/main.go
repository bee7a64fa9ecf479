package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// The exit codes.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitNotAllowed  = 4
	exitUnreachable = 5
)

// exitError carries an exit code and a hint for the person at the terminal.
type exitError struct {
	code int
	hint string
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	text := err.Error()
	if !strings.HasPrefix(text, "smolgym") { // errors of use begin with the command
		text = "smolgym: " + text
	}
	fmt.Fprintln(os.Stderr, text)
	code, hint := exitFailed, ""
	var e *exitError
	if errors.As(err, &e) {
		code, hint = e.code, e.hint
	}
	if code == exitUsage && hint == "" {
		hint = "see: " + cmd.CommandPath() + " --help"
		if cmd.Example != "" {
			hint = "for example: " + strings.TrimSpace(strings.SplitN(strings.TrimSpace(cmd.Example), "\n", 2)[0])
		}
	}
	if hint != "" {
		fmt.Fprintln(os.Stderr, hint)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "smolgym",
		Short:         "post-train small language models on this machine",
		Long:          "smolgym serves the Tinker API on this machine: the unmodified Tinker SDK samples, trains and\nsaves models whose weights you bring.",
		Example:       "smolgym serve\nsmolgym model add me/mymodel ./folder",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%w", err) })
	root.AddCommand(newServe(), newStatus(), newPs(), newDoctor(), newModel(), newRun(), newCheckpoint(), newChat(), newTokenize(), newKey(), newVersion())
	return root
}

// noArgs and exactArgs are cobra's checks with our exit code.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasSubCommands():
		return usagef("%s: unknown argument %q", cmd.CommandPath(), args[0])
	}
	hint := "see: " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("did you mean: %s %s", cmd.CommandPath(), near[0])
	}
	return &exitError{code: exitUsage, hint: hint, err: fmt.Errorf("%s: unknown command %q", cmd.CommandPath(), args[0])}
}

func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usagef("%s takes %s, got %d arguments", cmd.CommandPath(), strings.Join(names, " and "), len(args))
		}
		return nil
	}
}
