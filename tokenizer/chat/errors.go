package chat

import (
	"errors"
	"fmt"
)

// Sentinels of Compile and Render.
var (
	// ErrSyntax is returned when the source is not a template.
	ErrSyntax = errors.New("malformed chat template")
	// ErrRender is returned when the template fails where the reference fails too, e.g. for a part that isn't text.
	ErrRender = errors.New("chat template failed")
	// ErrRaised is returned when the template itself refuses the conversation; the error is a RaisedError.
	ErrRaised = errors.New("chat template refused the conversation")
	// ErrLimit is returned when a limit ended the work; the error is a LimitError.
	ErrLimit = errors.New("chat template reached a limit")
	// ErrInput is returned when the conversation is no JSON that a template can read.
	ErrInput = errors.New("malformed conversation")
	// ErrContinue is returned when the last message cannot be continued.
	ErrContinue = errors.New("final message cannot be continued")
)

// RaisedError is the template's own refusal, by raise_exception.
type RaisedError struct {
	Message string // the template's words
}

func (e *RaisedError) Error() string {
	return fmt.Sprintf("render chat template: %s; change the messages to what the template takes", e.Message)
}

// Is makes errors.Is(err, ErrRaised) hold.
func (e *RaisedError) Is(target error) bool { return target == ErrRaised }

// LimitError names the limit that ended the work.
type LimitError struct {
	Limit  string // source, input, fuel, time, memory, recursion or output
	Detail string // the limit's value or the engine's words
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("chat template: %s limit reached (%s); use a template or a conversation that needs less",
		e.Limit, e.Detail)
}

// Is makes errors.Is(err, ErrLimit) hold.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// Outcomes of the module: the first byte of each reply.
const (
	outcomeOK = iota
	outcomeSyntax
	outcomeRaised
	outcomeRender
	outcomeFuel
	outcomeRecursion
	outcomeOutput
	outcomeRequest
	outcomeContinue
)

func outcomeError(outcome byte, message string, limits Limits) error {
	switch outcome {
	case outcomeSyntax:
		return fmt.Errorf("compile chat template: %s: %w", message, ErrSyntax)
	case outcomeRaised:
		return &RaisedError{Message: message}
	case outcomeRender:
		return fmt.Errorf("render chat template: %s: %w", message, ErrRender)
	case outcomeFuel:
		return &LimitError{Limit: "fuel", Detail: fmt.Sprintf("%d steps", limits.Fuel)}
	case outcomeRecursion:
		return &LimitError{Limit: "recursion", Detail: message}
	case outcomeOutput:
		return &LimitError{Limit: "output", Detail: fmt.Sprintf("%s, the limit is %d", message, limits.Output)}
	case outcomeRequest:
		return fmt.Errorf("render chat template: read the variables: %s: %w", message, ErrInput)
	case outcomeContinue:
		return fmt.Errorf("render chat template: %s: %w", message, ErrContinue)
	}
	return fmt.Errorf("render chat template: unknown outcome %d of the module: %w", outcome, ErrRender)
}
