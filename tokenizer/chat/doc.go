// Package chat renders chat templates as the reference does, within limits, and tells the template's text from the messages'.
//
// The door is [Compile], which takes the Jinja source of a chat template and gives a [Template]; [Template.Render]
// turns a conversation into a [Result]. The reference is transformers' apply_chat_template(tokenize=False): the same
// text, the same spans of {% generation %} blocks, and an error wherever Python has one.
//
// The interpreter is the Rust crate minijinja with a patch, compiled to WebAssembly (the folder wasm has sources,
// patch and recipe; template.wasm.gz is what it makes) and run by wazero. A template therefore sees nothing but the
// values it is given: no files, no network, no clock but Input.Now. It cannot hurt the process either: fuel, time,
// memory, recursion and output have limits, and reaching one is a [LimitError] that names it.
//
// # Control text
//
// Result.Template has the byte ranges of the text that the template itself wrote: its raw text, its string literals,
// the date, and the variables of Input.Special. Everything else came from the conversation, the tools or Input.Vars,
// and a control token spelled there has to stay ordinary text: [Result.Control] says for a range whether it may be
// read as a control token. Marks follow text through concatenation, slices, single characters by index, repetition,
// macros, set and filter blocks, variables and namespaces, and through these filters and methods: trim, strip, lstrip,
// rstrip, split, rsplit, splitlines, partition, rpartition, removeprefix, removesuffix, replace, join, string, default,
// safe; any other one keeps them only if all its operands are text of the template. Where marks are lost, text counts
// as the conversation's: a template that makes a control token in such a roundabout way (a literal put through tojson
// together with a message) gets ordinary text there, never the other way round.
//
// A [Template] is safe for concurrent use.
package chat
