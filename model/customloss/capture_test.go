package customloss

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestCapture imports the graph of a recorded create_custom_loss request.
func TestCapture(t *testing.T) {
	shared := os.Getenv("SMOLGYM_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	text, err := os.ReadFile(filepath.Join(shared, "wire", "captures", "create_custom_loss.json"))
	if err != nil {
		t.Skipf("no recorded requests here (SMOLGYM_SHARED names their folder): %v", err)
	}
	var c struct {
		Request struct {
			Inputs []Input
			Graph  json.RawMessage
		} `json:"request_body"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	l, err := Import(c.Request.Graph, c.Request.Inputs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.Run(vector(-1, -2, -3), map[string]Tensor{"weights": vector(0, 1, 0.5)})
	if err != nil || got.Value != 3.5 || got.Grad[0] != 0 || got.Grad[1] != -1 || got.Grad[2] != -0.5 || got.Metrics["custom/nll:sum"] != 3.5 {
		t.Errorf("%+v, %v", got, err)
	}
}
