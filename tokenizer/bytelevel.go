package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// The byte-level alphabet of GPT-2: every byte is written as one printable character; the 188 printable Latin-1
// ones are themselves and the other 68 are U+0100 and up in order.
var (
	byteChar = makeByteChars()
	charByte = invertByteChars()
)

func makeByteChars() (chars [256]rune) {
	next := rune(256)
	for b := range chars {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			chars[b] = rune(b)
		} else {
			chars[b] = next
			next++
		}
	}
	return chars
}

// invertByteChars maps a character of the alphabet to its byte, all others below 324 to -1.
func invertByteChars() (bytes [324]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	for b, c := range byteChar {
		bytes[c] = int16(b)
	}
	return bytes
}

// toByteChars writes the bytes of s in the byte-level alphabet.
func toByteChars(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		b.WriteRune(byteChar[s[i]])
	}
	return b.String()
}

// fromByteChars is the inverse of toByteChars; false where a character isn't in the alphabet.
func fromByteChars(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if int(r) >= len(charByte) || charByte[r] < 0 {
			return "", false
		}
		b = append(b, byte(charByte[r]))
		i += n
	}
	return string(b), true
}
