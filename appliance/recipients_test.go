package appliance

import (
	"bytes"
	"crypto/ed25519"
	"io"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"golang.org/x/crypto/ssh"
)

// TestSSHRecipients: an export encrypted to an SSH key opens with it.
func TestSSHRecipients(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	to, err := recipients([]string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))})
	if err != nil {
		t.Fatal(err)
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, to...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "weights"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	id, err := agessh.NewEd25519Identity(private)
	if err != nil {
		t.Fatal(err)
	}
	r, err := age.Decrypt(&sealed, id)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "weights" {
		t.Fatalf("%q, %v", text, err)
	}
	if _, err := recipients([]string{"ssh-ed25519 AAAA nonsense"}); err == nil || !strings.Contains(err.Error(), "key 0") {
		t.Fatalf("a broken SSH key: %v", err)
	}
}
