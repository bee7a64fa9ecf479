package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	archive "smolgym/model/golden"
)

// BenchmarkSentencePiece encodes the repository's licence, 11 KB of prose, as one text.
func BenchmarkSentencePiece(b *testing.B) {
	licence, err := os.ReadFile(filepath.Join("..", "LICENSE"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range spNames {
		b.Run(name, func(b *testing.B) {
			tok, err := LoadSentencePiece(archive.Gunzip(b, filepath.Join("testdata", name+".model.gz")))
			if err != nil {
				b.Fatal(err)
			}
			tokens := 0
			b.SetBytes(int64(len(licence)))
			for b.Loop() {
				tokens += len(tok.Encode(string(licence), false))
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
	}
}

// BenchmarkEncode encodes the ordinary prose and code of the goldens, repeated as a service would see it, and
// reports tokens a second.
func BenchmarkEncode(b *testing.B) {
	for _, name := range []string{"gpt2", "qwen3", "llama3", "smollm2_style", "llama2", "gpt_oss",
		"deepseek_v3", "unigram_en", "unigram_ja"} {
		b.Run(name, func(b *testing.B) {
			tok := loadShared(b, name)
			var text strings.Builder
			eachGolden(b, filepath.Join(sharedFolder(b, name), "golden.jsonl.gz"), func(g goldenLine) {
				if isASCII(g.Text) && len(g.Text) > 40 && strings.Count(g.Text, " ")*12 > len(g.Text) {
					text.WriteString(g.Text)
					text.WriteByte('\n')
				}
			})
			s := text.String()
			tokens := 0
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				tokens += len(tok.Encode(s, false))
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
	}
}
