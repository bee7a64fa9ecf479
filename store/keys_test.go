package store

import (
	"errors"
	"testing"

	"smolgym/store/blob"
)

func TestKeys(t *testing.T) {
	db, _ := open(t)
	for _, bad := range []Key{{}, {ID: "x"}, {ID: "a\x00b", Hash: blob.Sum{1}}, {ID: "x", Name: "a\nb", Hash: blob.Sum{1}}} {
		if err := db.AddKey(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	k := Key{ID: "x", Name: "laptop", Hash: blob.Sum{1}}
	if err := db.AddKey(k); err != nil {
		t.Fatal(err)
	}
	if err := db.AddKey(k); !errors.Is(err, ErrExists) {
		t.Errorf("a second time: %v", err)
	}
	if list, err := db.Keys(); err != nil || len(list) != 1 || list[0].Name != "laptop" || list[0].Hash != k.Hash {
		t.Errorf("%+v: %v", list, err)
	}
	if err := db.DeleteKey("x"); err != nil {
		t.Fatal(err)
	}
	if err := db.DeleteKey("x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a second time: %v", err)
	}
}
