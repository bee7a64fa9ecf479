package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	archive "smolgym/model/golden"
)

// spNames are testdata's SentencePiece models; make_sp.py says how they were made.
var spNames = []string{"sp_bpe", "sp_bpe_rules", "sp_unigram", "sp_unigram_suffix"}

// spGolden is one string with SentencePiece's answers; Decoded is absent where a piece is unknown.
type spGolden struct {
	Text    string  `json:"text"`
	IDs     []int32 `json:"ids"`
	Decoded *string `json:"decoded"`
}

// checkSentencePiece holds a model against its golden: ids of ordinary text, decode and streamed decode.
func checkSentencePiece(t *testing.T, model, golden []byte) (n int) {
	t.Helper()
	tok, err := LoadSentencePiece(model)
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	report := func(what, text string, got, want any) {
		if bad++; bad <= 10 {
			t.Errorf("%s of %.200q:\n got %v\nwant %v", what, text, got, want)
		}
	}
	lines := bufio.NewScanner(bytes.NewReader(golden))
	lines.Buffer(nil, 16<<20)
	for ; lines.Scan(); n++ {
		var g spGolden
		if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		if got := tok.EncodeOrdinary(g.Text); !slices.Equal(got, g.IDs) {
			report("ids", g.Text, got, g.IDs)
		}
		if g.Decoded == nil {
			continue
		}
		if got := tok.Decode(g.IDs, false); got != *g.Decoded {
			report("decode", g.Text, got, *g.Decoded)
		}
		s := tok.NewStream(false)
		joined := ""
		for _, id := range g.IDs {
			joined += s.Push(id)
		}
		if joined += s.Flush(); joined != *g.Decoded {
			report("stream", g.Text, joined, *g.Decoded)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d strings, %d mismatches", n, bad)
	return n
}

func TestSentencePieceGolden(t *testing.T) {
	for _, name := range spNames {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name)
			n := checkSentencePiece(t, archive.Gunzip(t, path+".model.gz"), archive.Gunzip(t, path+".golden.jsonl.gz"))
			if n != 700 {
				t.Errorf("%d golden strings, want 700", n)
			}
		})
	}
}

// TestSentencePieceForeign is the same on the models in a folder of one's own: X.model.gz with X.golden.jsonl.gz, as
// make_sp.py writes it.
func TestSentencePieceForeign(t *testing.T) {
	dir := os.Getenv("SMOLGYM_SENTENCEPIECE")
	if dir == "" {
		t.Skip("no folder of SentencePiece models; set SMOLGYM_SENTENCEPIECE to one")
	}
	models, err := filepath.Glob(filepath.Join(dir, "*.model.gz"))
	if err != nil || len(models) == 0 {
		t.Fatalf("no *.model.gz in %s: %v", dir, err)
	}
	for _, path := range models {
		t.Run(filepath.Base(path), func(t *testing.T) {
			golden := strings.TrimSuffix(path, ".model.gz") + ".golden.jsonl.gz"
			checkSentencePiece(t, archive.Gunzip(t, path), archive.Gunzip(t, golden))
		})
	}
}

// TestSentencePieceControl: control pieces are recognised unless the text is ordinary, put before, and left out.
func TestSentencePieceControl(t *testing.T) {
	tok, err := LoadSentencePiece(archive.Gunzip(t, filepath.Join("testdata", "sp_bpe.model.gz")))
	if err != nil {
		t.Fatal(err)
	}
	bos, _ := tok.ID("<s>")
	cls, _ := tok.ID("<cls>")
	ids := tok.Encode("<cls>the robot<cls>", true)
	if len(ids) < 4 || ids[0] != bos || ids[1] != cls || ids[len(ids)-1] != cls {
		t.Fatalf("ids %v, want %d %d … %d", ids, bos, cls, cls)
	}
	if first, _ := tok.Token(ids[2]); strings.HasPrefix(first, sentencePieceMark) {
		t.Errorf("the text after a control piece begins with %q: the dummy space goes to the start only", first)
	}
	if got := tok.Decode(ids, true); got != "the robot" {
		t.Errorf("decoded without special: %q", got)
	}
	if got := tok.EncodeOrdinary("<cls>"); slices.Contains(got, cls) || len(got) < 2 {
		t.Errorf("ordinary ids %v hold the control piece", got)
	}
}

// wire builds a model message: fields of a kind and a payload.
func wire(fields ...string) []byte { return []byte(strings.Join(fields, "")) }

func message(number byte, payload string) string {
	return string(binary.AppendUvarint([]byte{number<<3 | protoBytes}, uint64(len(payload)))) + payload
}

// wirePiece is a piece of score 0.
func wirePiece(text string, kind byte) string {
	return message(1, message(1, text)+string([]byte{3 << 3, kind}))
}

// TestLoadSentencePieceRefuses: each broken or unsupported model gets an error that names what is wrong.
func TestLoadSentencePieceRefuses(t *testing.T) {
	unknown := wirePiece("<unk>", pieceUnknown)
	for _, c := range []struct {
		name, want string
		data       []byte
		is         error
	}{
		{"empty", "no unknown piece", nil, ErrFormat},
		{"text", "wire type", []byte(`{"model":1}`), ErrFormat},
		{"cut", "2 bytes of 100", wire("\x0a\x64ab"), ErrFormat},
		{"empty piece", "piece 1", wire(unknown, message(1, "")), ErrFormat},
		{"twice", "stands twice", wire(unknown, wirePiece("a", 1), wirePiece("a", 1)), ErrFormat},
		{"two unknown", "both the unknown", wire(unknown, wirePiece("u", pieceUnknown)), ErrFormat},
		{"type", "unknown type 9", wire(unknown, wirePiece("a", 9)), ErrFormat},
		{"byte", "is no byte", wire(unknown, wirePiece("<0x41>", pieceByte)), ErrFormat},
		{"fallback", "without the piece <0x00>", wire(unknown, message(2, "\x98\x02\x01")), ErrFormat},
		{"charsmap", "charsmap", wire(unknown, message(3, message(2, "abc"))), ErrFormat},
		{"score", "score NaN", wire(unknown, message(1, message(1, "a")+"\x15\x00\x00\xc0\x7f")), ErrFormat},
		{"word", "model type 3", wire(unknown, message(2, "\x18\x03")), ErrUnsupported},
		{"unused", "unused piece", wire(unknown, wirePiece("ab", pieceUnused), message(2, "\x18\x02")), ErrUnsupported},
		{"denormalizer", "denormalizer", wire(unknown, message(5, message(2, "abc"))), ErrUnsupported},
	} {
		_, err := LoadSentencePiece(c.data)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.is, c.want)
		}
	}
}

// TestSentencePieceBeyond: merges of a BPE model go over characters that are no pieces, and ties go to the left.
func TestSentencePieceBeyond(t *testing.T) {
	tok, err := LoadSentencePiece(wire(wirePiece("<unk>", pieceUnknown), wirePiece("ab", 1), wirePiece("bb", 1),
		message(2, "\x18\x02"), message(3, "\x18\x00")))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int32{"ab": {1}, "abb": {1, 0}, "bab": {0, 1}, "xab": {0, 1}, "bbb": {2, 0},
		"xx": {0}, "bx": {0}, "a": {0}} {
		if got := tok.EncodeOrdinary(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
