// Package tokenizer turns text to ids and back from tokenizer.json, incremental decode, chat templates.
//
// The door is [Load], which compiles the bytes of a Hugging Face tokenizer.json into a [Tokenizer]. A file that
// names a component this package does not have is refused with an [UnsupportedError] that lists every such
// component; nothing is approximated. [LoadSentencePiece] does the same for a SentencePiece model file.
//
// The reference is the tokenizers library, version 0.22: the ids and the decoded text are the same as its
// encode and decode give. Two settings of the file are of a call and not of the text, and the reference's
// own callers switch them off; they are ignored here: truncation and padding.
//
// Text of special added tokens inside the input is recognised as those tokens (as the reference does). A caller
// that renders chat messages must not pass untrusted message text through [Tokenizer.Encode] together with
// control tokens and expect it to stay ordinary text: [Tokenizer.EncodeFunc] asks about every control token.
//
// A [Tokenizer] never changes after Load and is safe for concurrent use. [Stream] and [StopMatcher] are the
// state of one sequence each and belong to one goroutine.
package tokenizer
