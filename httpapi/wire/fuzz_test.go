package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func FuzzForwardBackwardRequest(f *testing.F) {
	seeds, _ := filepath.Glob(filepath.Join(testdata, "requests", "*.pb"))
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, path := range seeds {
		f.Add(readGolden(f, "requests", filepath.Base(path)))
	}
	f.Add(request(datumField(inputField("weights", csrMessage([]float32{1}, []int64{0, 1, 1}, []int64{1}, 2, 2)))))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := DecodeForwardBackwardRequest(body)
		var unsupported *UnsupportedChunkError
		if err != nil {
			if !errors.Is(err, ErrMalformed) || req != nil && !errors.As(err, &unsupported) {
				t.Fatalf("request %v beside %v", req, err)
			}
			return
		}
		for _, d := range req.Data {
			for name, tensor := range d.Inputs {
				if err := tensor.check(); err != nil || tensor.CSR != nil {
					t.Fatalf("input %q was let through: %v", name, err)
				}
			}
		}
		if int64(int32(req.SeqID)) != req.SeqID {
			return // more than the schema's int32; the caller's to refuse
		}
		encoded, err := EncodeForwardBackwardRequest(req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeForwardBackwardRequest(encoded)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := EncodeForwardBackwardRequest(again)
		if err != nil || !bytes.Equal(encoded, twice) {
			t.Fatalf("encoding is not stable: %x, then %x (%v)", encoded, twice, err)
		}
	})
}

func FuzzResponses(f *testing.F) {
	for _, name := range []string{"output_ragged", "output_none", "sample_full", "sample_empty"} {
		f.Add(readGolden(f, "responses", name+".pb"))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := DecodeSampleResponse(body); err == nil {
			if b, err := EncodeSampleResponse(r); err == nil {
				if _, err := DecodeSampleResponse(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		if out, err := DecodeForwardBackwardOutput(body); err == nil {
			if b, err := EncodeForwardBackwardOutput(out); err == nil {
				if _, err := DecodeForwardBackwardOutput(b); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func FuzzSampleRequest(f *testing.F) {
	for name, c := range loadCaptures(f) {
		if route(name, c) == "asample" {
			f.Add([]byte(c.RequestBody))
		}
	}
	f.Add([]byte(`{` + sampleHead + `,"sampling_params":{"stop":["a",7],"seed":-1}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := &SampleRequest{}
		if err := DecodeJSON(body, r); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again := &SampleRequest{}
		if err := DecodeJSON(b, again); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		if c, err := json.Marshal(again); err != nil || !bytes.Equal(b, c) {
			t.Fatalf("%s, then %s (%v)", b, c, err)
		}
	})
}

// FuzzJSONBodies throws one body at every request type, since they share a reader.
func FuzzJSONBodies(f *testing.F) {
	for _, c := range loadCaptures(f) {
		if len(c.RequestBody) > 0 {
			f.Add([]byte(c.RequestBody))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for row, types := range bodies {
			if types[0] == nil {
				continue
			}
			v := types[0]()
			if err := DecodeJSON(body, v); err != nil {
				if !errors.Is(err, ErrMalformed) {
					t.Fatalf("%s: %v", row, err)
				}
				continue
			}
			if _, err := json.Marshal(v); err != nil {
				t.Fatalf("%s: %v", row, err)
			}
		}
	})
}

func FuzzParsePath(f *testing.F) {
	f.Add("tinker://sess-1:train:0/weights/step-1")
	f.Add("tinker://a/sampler_weights/../x")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err == nil && (p.String() != s || CheckName(p.Name) != nil || CheckRunID(p.Run) != nil || p.Kind.Type() == "") {
			t.Fatalf("%q parsed as %+v", s, p)
		}
	})
}

func FuzzDecodeBody(f *testing.F) {
	f.Add(compress(f, zstd.SpeedDefault, []byte("hello hello hello")))
	f.Add(compress(f, zstd.SpeedFastest, make([]byte, 1<<20)))
	f.Add([]byte{0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		const limit = 1 << 16
		body, err := DecodeBody(bytes.NewReader(raw), "zstd", limit)
		var large *TooLargeError
		if err == nil && len(body) > limit || err != nil && !errors.Is(err, ErrMalformed) && !errors.As(err, &large) {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
	})
}
