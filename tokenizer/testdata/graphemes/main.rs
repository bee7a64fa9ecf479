// Prints where unicode-segmentation 1.12.0 (what the reference, tokenizers 0.22.2, is built with) ends the extended
// grapheme clusters of each line of the input, as counts of code points. A line is hexadecimal code points.
//
//     cargo init; cargo add unicode-segmentation@=1.12.0; cp main.rs src/; cargo build --release; python make.py target/release/NAME
use std::io::{stdin, Read};
use unicode_segmentation::UnicodeSegmentation;

fn main() {
    let mut input = String::new();
    stdin().read_to_string(&mut input).unwrap();
    for line in input.lines() {
        let text: String = line
            .split(' ')
            .map(|hex| char::from_u32(u32::from_str_radix(hex, 16).unwrap()).unwrap())
            .collect();
        let mut at = 0;
        let ends: Vec<String> = text
            .graphemes(true)
            .map(|g| {
                at += g.chars().count();
                at.to_string()
            })
            .collect();
        println!("{}", ends.join(" "));
    }
}
