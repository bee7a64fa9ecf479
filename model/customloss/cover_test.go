package customloss

import (
	"slices"
	"strings"
	"testing"
)

// TestEveryFormHasAGolden: no form of the table goes without a comparison with torch.
func TestEveryFormHasAGolden(t *testing.T) {
	seen := map[*operation]bool{}
	for _, g := range goldens(t) {
		l, err := Import(g.Graph, g.Inputs)
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		for _, s := range l.nodes {
			for _, f := range s.forms {
				seen[f.op] = true
			}
		}
	}
	names := map[*operation][]string{}
	for name, forms := range table {
		for _, o := range forms {
			names[o] = append(names[o], name)
		}
	}
	for o, doors := range names {
		if !seen[o] {
			slices.Sort(doors)
			t.Errorf("%s with %d parameters is in no golden: add an expression to testdata/operations.py", strings.Join(doors, ", "), len(o.params))
		}
	}
	t.Logf("%d forms under %d names", len(names), len(table))
}
