package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smolgym/httpapi"
)

// TestKey: from the first key on only keys that were made are let in, until they are revoked.
func TestKey(t *testing.T) {
	dir := t.TempDir()
	url, server := serve(t, dir)
	env := []string{"TINKER_BASE_URL=" + url}
	cli(t, "", env, "key", "list").want(t, 0, "ID")
	made := cli(t, "", env, "key", "create", "--name", "laptop")
	made.want(t, 0, "tml-", "only time")
	first := strings.TrimSpace(made.out)
	with := append(env, "TINKER_API_KEY="+first)
	cli(t, "", env, "status").want(t, exitNotAllowed, "key create")
	cli(t, "", with, "status").want(t, 0, "device")
	list := cli(t, "", with, "key", "list")
	list.want(t, 0, "laptop")
	var second httpapi.Key
	if err := json.Unmarshal([]byte(cli(t, "", with, "key", "create", "--json").out), &second); err != nil || len(second.Key) < 60 {
		t.Fatalf("%+v: %v", second, err)
	}
	if all := cli(t, "", with, "key", "list", "--json"); strings.Contains(all.out, first) || strings.Contains(all.out, second.Key) || !strings.Contains(all.out, second.ID) {
		t.Errorf("the list has %s", all.out)
	}
	cli(t, "", with, "key", "revoke", second.ID).want(t, 0, "revoked "+second.ID)
	cli(t, "", with, "key", "revoke", second.ID).want(t, exitNotFound, second.ID)
	cli(t, "", append(env, "TINKER_API_KEY="+second.Key), "status").want(t, exitNotAllowed, "not known")

	// The way in for one who lost all keys, once the server is stopped.
	data := filepath.Join(dir, "smolgym-data")
	cli(t, "", nil, "key", "create", "--data", data).wantFailure(t, "stop the server")
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait() // it was killed
	third := strings.TrimSpace(cli(t, "", nil, "key", "create", "--data", data).out)
	url, _ = serve(t, dir)
	for _, key := range []string{first, third} {
		cli(t, "", []string{"TINKER_BASE_URL=" + url, "TINKER_API_KEY=" + key}, "status").want(t, 0, "device")
	}
	cli(t, "", []string{"TINKER_BASE_URL=" + url}, "status").want(t, exitNotAllowed)
	for _, args := range [][]string{{"create", "extra"}, {"revoke"}, {"list", "extra"}} {
		cli(t, "", nil, append([]string{"key"}, args...)...).want(t, exitUsage, "for example: smolgym key "+args[0])
	}
}

// TestPublicAddress: an address that others can reach needs a key in the data folder, and stays shut when it is revoked.
func TestPublicAddress(t *testing.T) {
	dir := t.TempDir()
	public := func() (string, *exec.Cmd) { return serveAt(t, dir, "0.0.0.0:0") }
	cli(t, "", nil, "serve", "--addr", "0.0.0.0:0", "--data", dir).want(t, exitNotAllowed, "refused", "key create --data "+dir)
	key := strings.TrimSpace(cli(t, "", nil, "key", "create", "--data", filepath.Join(dir, "smolgym-data")).out)
	url, _ := public()
	url = strings.Replace(url, "[::]", "127.0.0.1", 1)
	env := []string{"TINKER_BASE_URL=" + url, "TINKER_API_KEY=" + key}
	cli(t, "", env, "status").want(t, 0, "device")
	cli(t, "", env[:1], "status").want(t, exitNotAllowed)
	var list httpapi.Keys
	if err := json.Unmarshal([]byte(cli(t, "", env, "key", "list", "--json").out), &list); err != nil || len(list.Keys) != 1 {
		t.Fatalf("%+v: %v", list, err)
	}
	cli(t, "", env, "key", "revoke", list.Keys[0].ID).want(t, 0)
	cli(t, "", env, "status").want(t, exitNotAllowed)
	cli(t, "", env[:1], "status").want(t, exitNotAllowed)
}
