package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// wrapped is an expression in the middle of n openings and closings.
func wrapped(open, shut string, n int) string {
	return "{{ " + strings.Repeat(open, n) + "1" + strings.Repeat(shut, n) + " }}"
}

// hostile templates, each with the limit that ends it; "" stands for any error, and "ok" for a rendering that is cheap.
var hostile = []struct{ name, source, limit string }{
	{"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"},
	{"recursion by caller", "{% macro f(x) %}{% call(y) f(x) %}{{ caller() }}{% endcall %}{% endmacro %}{{ f(1) }}", ""},
	{"recursive loop", "{% set ns = namespace(l=[1]) %}{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion"},
	{"long range", "{% for i in range(1000000000) %}{% endfor %}", ""},
	{"length of range", "{{ range(1000000000)|length }}", ""},
	{"nested loops", "{% for i in range(90000) %}{% for j in range(90000) %}{{ i }}{% endfor %}{% endfor %}", ""},
	{"empty loops", "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", ""},
	{"doubling text", "{% set n = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s|length }}", ""},
	{"doubling mixed text", "{% set n = namespace(s='a' ~ messages|length ~ 'b') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s|length }}", ""},
	{"repeated text", "{{ 'a' * 2000000000 }}", ""},
	{"doubling list", "{% set n = namespace(s=[1,2,3]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s|length }}", ""},
	{"parentheses", wrapped("(", ")", 100_000), ""},
	{"brackets", wrapped("[", "]", 100_000), ""},
	{"not", wrapped("not ", "", 200_000), ""},
	{"minus", wrapped("-", "", 200_000), ""},
	{"plus", wrapped("+", "", 200_000), "ok"},
	{"plus and minus", wrapped("+-", "", 200_000), ""},
	{"attributes", "{{ x" + strings.Repeat(".a", 200_000) + " }}", ""},
	{"filters", "{{ 1" + strings.Repeat("|string", 100_000) + " }}", ""},
	{"sum", "{{ 1" + strings.Repeat("+n", 100_000) + " }}", ""},
	{"conditions", "{{ 1" + strings.Repeat(" if 1 else 1", 50_000) + " }}", ""},
	{"power", "{{ 9 ** 9 ** 9 }}", ""},
	{"replace", "{% set s='" + strings.Repeat("a", 32) + "' %}{{ s" + strings.Repeat("|replace('a',s)", 6) + "|length }}", ""},
	{"split", "{{ ('a,'*60000000).split(',')|length }}", ""},
	{"center", "{{ 'x'.center(2000000000) }}", ""},
	{"format", "{{ '%2000000000d'|format(1) }}", ""},
	{"percent", "{{ '%2000000000d' % 1 }}", ""},
	{"percent at run time", "{{ '%2000000000d' % n }}", ""},
	{"str.format", "{{ '{:2000000000}'.format(1) }}", ""},
	{"indent", "{{ 'a\nb'|indent(2000000000) }}", ""},
	{"indent of tojson", "{{ [1]|tojson(indent=2000000000) }}", ""},
	{"ifs", strings.Repeat("{% if 1 %}", 20_000) + strings.Repeat("{% endif %}", 20_000), ""},
	{"deep data", "{% set n = namespace(s=[]) %}{% for i in range(50000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}", ""},
	{"deep tojson", "{% set n = namespace(s=[]) %}{% for i in range(50000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s|tojson }}", ""},
	{"deep comparison", "{% set n = namespace(s=[], t=[]) %}{% for i in range(50000) %}{% set n.s = [n.s] %}{% set n.t = [n.t] %}{% endfor %}{{ n.s == n.t }}", ""},
	{"cycle", "{% set n = namespace(s=[]) %}{% set n.s = [n] %}{{ n.s }}", ""},
	{"cycle in tojson", "{% set n = namespace(s=[]) %}{% set n.s = n %}{{ n|tojson }}", ""},
	{"much output", "{% for i in range(99999) %}{{ '" + strings.Repeat("x", 1000) + "' }}{% endfor %}", ""},
	{"big literal", "{% if 0 %}" + strings.Repeat("{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}", 25_000) + "{% endif %}", "ok"},
	{"unclosed", "{% for x in y %}", "syntax"},
	{"include", "{% include 'x' %}", ""},
	{"import", "{% import '/etc/passwd' as x %}", ""},
}

// mayTake is the longest that a hostile template may keep a caller: the time limit twice (compiling and rendering) and
// room for a slow machine.
func mayTake(l Limits) time.Duration { return 2*l.Time + 4*time.Second }

func TestHostileTemplates(t *testing.T) {
	limits := DefaultLimits
	limits.Time = 4 * time.Second // ample for what should end by fuel, on a machine that does other things too
	e := NewEngine(limits)
	defer e.Close(context.Background())
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			start := time.Now()
			tmpl, err := e.Compile(t.Context(), h.source)
			stage, text := "compile", ""
			if err == nil {
				stage = "render"
				var r Result
				r, err = tmpl.Render(t.Context(), Input{Vars: map[string]any{"n": 1}})
				text = r.Text
			}
			took := time.Since(start)
			var limit *LimitError
			switch {
			case took > mayTake(limits):
				t.Errorf("took %v", took)
			case h.limit == "ok" && err != nil:
				t.Errorf("%s: %v", stage, err)
			case h.limit == "ok":
			case err == nil:
				t.Errorf("rendered %d bytes: %.80q", len(text), text)
			case h.limit == "syntax" && !errors.Is(err, ErrSyntax):
				t.Errorf("%s: %v, want a syntax error", stage, err)
			case h.limit != "" && h.limit != "syntax" && (!errors.As(err, &limit) || limit.Limit != h.limit):
				t.Errorf("%s: %v, want the %s limit", stage, err, h.limit)
			}
			t.Logf("%s, %v: %.140v", stage, took.Round(time.Millisecond), err)
			// whatever happened, the next rendering is not affected
			after, err := e.Compile(t.Context(), "{{ messages|length }}")
			if err != nil {
				t.Fatal(err)
			}
			if r, err := after.Render(t.Context(), Input{}); err != nil || r.Text != "0" {
				t.Fatalf("afterwards: %q, %v", r.Text, err)
			}
		})
	}
}

// TestLimitNames reaches each limit of an engine with small ones.
func TestLimitNames(t *testing.T) {
	e := NewEngine(Limits{Source: 4000, Input: 2000, Output: 100, Fuel: 300_000, Time: 20 * time.Second, Memory: 16 << 20})
	defer e.Close(context.Background())
	slow := NewEngine(Limits{Fuel: 1 << 60, Time: 50 * time.Millisecond})
	defer slow.Close(context.Background())
	loops := "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
	for _, c := range []struct {
		limit, source string
		engine        *Engine
		in            Input
	}{
		{"source", strings.Repeat("a", 4001), e, Input{}},
		{"input", "{{ messages }}", e, Input{Messages: []any{strings.Repeat("a", 2000)}}},
		{"output", strings.Repeat("a", 101), e, Input{}},
		{"fuel", loops, e, Input{}},
		{"time", loops, slow, Input{}},
		{"memory", "{{ '%90000000d' % n }}", e, Input{Vars: map[string]any{"n": 1}}},
		{"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", e, Input{}},
	} {
		tmpl, err := c.engine.Compile(t.Context(), c.source)
		if err == nil {
			_, err = tmpl.Render(t.Context(), c.in)
		}
		var limit *LimitError
		if !errors.As(err, &limit) || limit.Limit != c.limit || !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", c.limit, err)
		}
	}
	tmpl, err := e.Compile(t.Context(), strings.Repeat("a", 100))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := tmpl.Render(t.Context(), Input{}); err != nil || len(r.Text) != 100 {
		t.Errorf("output at the limit: %d bytes, %v", len(r.Text), err)
	}
}

// TestCancel ends a rendering with its caller's context, whose error comes through.
func TestCancel(t *testing.T) {
	e := NewEngine(Limits{Fuel: 1 << 60, Time: time.Minute})
	defer e.Close(context.Background())
	tmpl, err := e.Compile(t.Context(), "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := tmpl.Render(ctx, Input{}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLimit) {
		t.Errorf("error %v, want the context's", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tmpl.Render(gone, Input{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

// TestClose gives the memory of every instance back, however its last call ended.
func TestClose(t *testing.T) {
	e := NewEngine(Limits{Time: 200 * time.Millisecond, Fuel: 1 << 60})
	for i, source := range []string{"{{ messages }}", "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", "{{"} {
		tmpl, err := e.Compile(t.Context(), source)
		if (err != nil) != (i == 2) {
			t.Fatalf("%s: %v", source, err)
		}
		if err != nil {
			continue
		}
		if _, err := tmpl.Render(t.Context(), Input{}); errors.Is(err, ErrLimit) != (i == 1) {
			t.Fatalf("%s: %v", source, err)
		}
	}
	if open, want := e.open.Load(), int64(len(waiting(e))); open != want || open == 0 {
		t.Errorf("%d instances are open, %d wait", open, want)
	}
	if err := e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if open := e.open.Load(); open != 0 {
		t.Errorf("%d instances are open after Close", open)
	}
}

// waiting gives the instances that wait.
func waiting(e *Engine) (all []*instance) {
	for el := e.order.Front(); el != nil; el = el.Next() {
		all = append(all, el.Value.(*cacheEntry).template.idle...)
	}
	return all
}

// TestIdleMemory: however big templates make their instances, those that wait have little memory, the templates used
// last keep theirs, and all others still render.
func TestIdleMemory(t *testing.T) {
	e := NewEngine(Limits{Time: time.Minute}) // on a machine that does other things too
	defer e.Close(context.Background())
	big := Input{Messages: []any{strings.Repeat("a", 100<<10)}}
	held := func() (sum int64) {
		for _, in := range waiting(e) {
			sum += in.bytes()
		}
		return sum
	}
	var all []*Template
	total := int64(0) // of what each template's instance came to
	for i := range 28 {
		tmpl, err := e.Compile(t.Context(), fmt.Sprintf("%d{{ messages[0]|length }}", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tmpl.Render(t.Context(), big); err != nil {
			t.Fatal(err)
		}
		if len(tmpl.idle) != 1 {
			t.Fatalf("template %d has %d waiting instances after its use", i, len(tmpl.idle))
		}
		total += tmpl.idle[0].bytes()
		all = append(all, tmpl)
		if got := e.idle.Load(); got > idleBytes || got != held() {
			t.Fatalf("after %d templates %d bytes wait, counted as %d; the limit is %d", i+1, held(), got, idleBytes)
		}
	}
	if total < 2*idleBytes {
		t.Errorf("the instances came to %d bytes: too little to test the limit", total)
	}
	for i, tmpl := range all {
		if r, err := tmpl.Render(t.Context(), Input{Messages: []any{"xyz"}}); err != nil || r.Text != fmt.Sprintf("%d3", i) {
			t.Errorf("template %d: %q, %v", i, r.Text, err)
		}
	}
	for _, tmpl := range all {
		tmpl.drop(true)
	}
	if got := e.idle.Load(); got != 0 {
		t.Errorf("%d bytes are counted where none wait", got)
	}
	if got := e.open.Load(); got != 0 {
		t.Errorf("%d instances are left where none wait", got)
	}
}
