package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"smolgym/appliance"
	"smolgym/httpapi"
	"smolgym/store"
)

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "the keys that let clients in",
		Long: `While there is no key, everybody on this machine is let in and the server listens on
loopback addresses only. From the first key on, only keys that were made here are let in.
Keys are stored hashed: a key's text is printed once, when it is made.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeyCreate(), newKeyList(), newKeyRevoke())
	return cmd
}

// storeName is the file of a data folder.
const storeName = "smolgym.db"

// openStore opens the store of a data folder that no server uses.
func openStore(data string) (*store.DB, error) {
	file := filepath.Join(data, storeName)
	if _, err := os.Stat(file); err != nil {
		return nil, &exitError{code: exitNotFound, hint: "name the folder that \"smolgym serve --data\" uses", err: fmt.Errorf("no store in %s", data)}
	}
	return store.Open(file, store.Options{})
}

func newKeyCreate() *cobra.Command {
	var c client
	var name, data string
	cmd := &cobra.Command{
		Use: "create", Short: "make a key and print it, this once", Args: noArgs,
		Long: `Makes a key and prints it. From the first key on nobody is let in without one. With
--data the key is made in the folder of a server that isn't running: the way in when
keys were lost, and before the first start on a public address.`,
		Example: "smolgym key create --name laptop\nsmolgym key create --data ./smolgym-data",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var k httpapi.Key
			if data == "" {
				if err := c.exchange(http.MethodPost, "/smolgym/v1/keys", httpapi.KeyRequest{Name: name}, &k); err != nil {
					return err
				}
			} else if err := createOffline(data, name, &k); err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "note: this is the only time the key is shown: export TINKER_API_KEY=KEY")
			return c.say(cmd, k, "%s\n", k.Key)
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().StringVar(&name, "name", "", "what the key is for")
	cmd.Flags().StringVar(&data, "data", "", "make the key in this data folder, whose server isn't running")
	return cmd
}

// createOffline makes a key in a data folder.
func createOffline(data, name string, k *httpapi.Key) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	db, err := store.Open(filepath.Join(data, storeName), store.Options{})
	if err != nil {
		return &exitError{code: exitFailed, hint: "stop the server, or leave --data out to ask it", err: err}
	}
	rec, text, err := appliance.NewKey(name, time.Now())
	if err == nil {
		err = db.AddKey(rec)
	}
	*k = httpapi.Key{ID: rec.ID, Name: rec.Name, Created: rec.Created.UTC(), Key: text}
	return errors.Join(err, db.Close())
}

// hasKey says whether a data folder has a key.
func hasKey(data string) (bool, error) {
	db, err := openStore(data)
	if err != nil {
		return false, err
	}
	list, err := db.Keys()
	return len(list) > 0, errors.Join(err, db.Close())
}

func newKeyList() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "list", Short: "list the keys; their texts aren't kept", Example: "smolgym key list --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list httpapi.Keys
			if done, err := c.fetch(cmd, "/smolgym/v1/keys", &list); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout(), "ID", "NAME", "CREATED")
			for _, k := range list.Keys {
				t.row(k.ID, k.Name, when(&k.Created))
			}
			return t.flush()
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func newKeyRevoke() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "let nobody in by a key any more", Example: "smolgym key revoke 1f2e3d4c", Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := c.call(http.MethodDelete, "/smolgym/v1/keys/"+url.PathEscape(args[0]), nil, nil); err != nil {
				return err
			}
			return c.say(cmd, map[string]string{"revoked": args[0]}, "revoked %s\n", args[0])
		},
	}
	c.jsonFlag(cmd)
	return cmd
}
