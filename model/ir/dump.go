package ir

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Dump writes the graph as readable text, one line a value or node. The same
// graph gives the same text.
func Dump(w io.Writer, g *Graph) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "graph %s (op table %d)\n", g.Name, TableVersion)
	for _, class := range []Class{ClassInput, ClassConst, ClassWeight, ClassAdapter, ClassState, ClassGroup} {
		for _, id := range g.Named(class) {
			v := g.Value(id)
			fmt.Fprintf(b, "%-7s %%%-4d %-18s %s\n", class, id, v.Type, v.Name)
		}
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		fmt.Fprintf(b, "%s = %s(%s)%s\n", refs(g, n.Out, true), n.Op, refs(g, n.In, false), attrText(n))
	}
	for _, o := range g.Outputs {
		fmt.Fprintf(b, "output  %%%-4d %-18s %s\n", o.Value, g.Value(o.Value).Type, o.Name)
	}
	return b.Flush()
}

func refs(g *Graph, ids []ID, types bool) string {
	parts := make([]string, len(ids))
	for i, id := range ids {
		parts[i] = fmt.Sprintf("%%%d", id)
		if v := g.Value(id); types {
			parts[i] += ":" + v.Type.String()
		} else if v.Class != ClassNode {
			parts[i] = v.Name
		}
	}
	return strings.Join(parts, ", ")
}

func attrText(n *Node) string {
	a, set := n.Attr, n.Op.Spec().Attrs
	var parts []string
	add := func(attr AttrSet, format string, v any) {
		if set&attr != 0 {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add(AttrEps, "eps=%g", a.Eps)
	add(AttrScale, "scale=%g", a.Scale)
	add(AttrHeads, "heads=%d", a.Heads)
	add(AttrKVHeads, "kv_heads=%d", a.KVHeads)
	add(AttrHeadDim, "head_dim=%d", a.HeadDim)
	add(AttrRotary, "rotary=%d", a.Rotary)
	add(AttrPage, "page=%d", a.Page)
	if a.Window != 0 {
		add(AttrWindow, "window=%d", a.Window)
	}
	add(AttrOffset, "offset=%d", a.Offset)
	add(AttrOf, "of=%d", a.Of)
	add(AttrPick, "pick=%d", a.Pick)
	if a.Softcap != 0 {
		add(AttrSoftcap, "softcap=%g", a.Softcap)
	}
	if a.Unit {
		parts = append(parts, "unit")
	}
	if a.Normalise {
		parts = append(parts, "normalise")
	}
	if a.Inverse {
		parts = append(parts, "inverse")
	}
	if a.Module != "" {
		parts = append(parts, a.Module)
	}
	if len(parts) == 0 {
		return ""
	}
	return "  # " + strings.Join(parts, " ")
}
