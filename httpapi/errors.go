package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// statuses maps the appliance's codes. A conflict is a 400: clients repeat a 409
// for minutes.
var statuses = map[appliance.Code]int{
	appliance.CodeUser:        http.StatusBadRequest,
	appliance.CodeConflict:    http.StatusBadRequest,
	appliance.CodeUnsupported: http.StatusBadRequest,
	appliance.CodeNoFit:       http.StatusBadRequest,
	appliance.CodeNotFound:    http.StatusNotFound,
	appliance.CodeGone:        http.StatusGone,
	appliance.CodeTooLarge:    http.StatusRequestEntityTooLarge,
	appliance.CodeBusy:        http.StatusTooManyRequests,
	appliance.CodeServer:      http.StatusInternalServerError,
}

// statusError is an error with a status of its own.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

func errorf(status int, format string, args ...any) error {
	return &statusError{status, fmt.Sprintf(format, args...)}
}

// statusOf gives the status of an error and the text for the user.
func statusOf(err error) (int, string) {
	var problem *appliance.Problem
	var large *wire.TooLargeError
	var own *statusError
	switch {
	case errors.As(err, &own):
		return own.status, own.text
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, large.Error()
	case errors.Is(err, wire.ErrEncoding):
		return http.StatusUnsupportedMediaType, err.Error()
	case errors.Is(err, wire.ErrMalformed):
		return http.StatusBadRequest, err.Error()
	case errors.As(err, &problem):
		if status, ok := statuses[problem.Code]; ok {
			return status, problem.Error()
		}
	}
	return http.StatusInternalServerError, "the server failed; its log has the cause"
}

// fail answers an error.
func (s *server) fail(c *gin.Context, err error) {
	status, text := statusOf(err)
	if status >= http.StatusInternalServerError {
		id := s.requestID()
		s.log.Error("request failed", "request", id, "method", c.Request.Method, "route", c.FullPath(), "error", causes(err))
		text += " (request " + id + ")"
	}
	if status == http.StatusTooManyRequests {
		c.Header("Retry-After", "1")
	}
	c.AbortWithStatusJSON(status, wire.ErrorResponse{Detail: text})
}

// causes is an error with what it was wrapped around: a problem's text leaves it out.
func causes(err error) string {
	text := err.Error()
	if cause := errors.Unwrap(err); cause != nil {
		text += ": " + cause.Error()
	}
	return text
}
