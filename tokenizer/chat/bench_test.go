package chat

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
)

const benchSource = `{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

func BenchmarkRender(b *testing.B) {
	text := strings.Repeat("Name three rivers that flow north. ", 8)
	for _, x := range []struct {
		name  string
		turns int
	}{{"5turns", 5}, {"200turns", 200}} {
		b.Run(x.name, func(b *testing.B) {
			in := Input{AddGenerationPrompt: true}
			for i := range x.turns {
				in.Messages = append(in.Messages, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": text})
			}
			tmpl := compile(b, benchSource)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tmpl.Render(b.Context(), in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPublished renders conversations of the corpus with published templates.
func BenchmarkPublished(b *testing.B) {
	dir := sharedFolder(b)
	conversations := map[string]conversation{}
	readLines(b, filepath.Join(dir, "conversations.jsonl.gz"), func(line []byte) {
		var c conversation
		readJSON(b, line, &c)
		conversations[c.ID] = c
	})
	for _, name := range []string{"qwen3", "gpt_oss", "gemma4"} {
		source, err := os.ReadFile(filepath.Join(dir, name+".jinja"))
		if err != nil {
			b.Fatal(err)
		}
		tmpl := compile(b, string(source))
		for _, id := range []string{"c028_multi", "c076_calls"} {
			in := conversations[id].input(b, nil)
			b.Run(name+"/"+id, func(b *testing.B) {
				for b.Loop() {
					if _, err := tmpl.Render(b.Context(), in); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkCompile loads a template into a new instance.
func BenchmarkCompile(b *testing.B) {
	e := NewEngine(Limits{Cached: 1})
	defer e.Close(context.Background())
	for i := 0; b.Loop(); i++ {
		if _, err := e.Compile(b.Context(), benchSource+strings.Repeat(" ", i%2)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStart makes the machine code of the interpreter: what the first use of the package costs.
func BenchmarkStart(b *testing.B) {
	code, err := moduleBytes()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		rt := wazero.NewRuntime(b.Context())
		if _, err := rt.CompileModule(b.Context(), code); err != nil {
			b.Fatal(err)
		}
		if err := rt.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
