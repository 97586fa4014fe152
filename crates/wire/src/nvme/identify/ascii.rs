//! ASCII fields: printable, padded with spaces, no terminator.

/// `text` padded with spaces to `N` bytes, or `None` if it is longer or not printable ASCII.
pub fn ascii_padded<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut field = [b' '; N];
    field.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    printable(&field).then_some(field)
}

/// The text of `field` without its padding, or `None` if it isn't printable ASCII.
pub fn ascii_text(field: &[u8]) -> Option<&str> {
    let end = field.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    let text = &field[..end];
    if printable(text) { core::str::from_utf8(text).ok() } else { None }
}

fn printable(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (0x20..=0x7e).contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_field_padding_round_trip() {
        let field: [u8; 8] = ascii_padded("doorbell").unwrap();
        assert_eq!(ascii_text(&field), Some("doorbell"));
        let field: [u8; 8] = ascii_padded(" a b").unwrap();
        assert_eq!(&field, b" a b    ");
        assert_eq!(ascii_text(&field), Some(" a b"));
        assert_eq!(ascii_text(b"    "), Some(""));
    }

    #[test]
    fn ascii_padded_rejects_long_or_unprintable_text() {
        assert_eq!(ascii_padded::<4>("doorbell"), None);
        assert_eq!(ascii_padded::<4>("é"), None);
        assert_eq!(ascii_padded::<4>("a\n"), None);
        assert_eq!(ascii_text(b"SN\0\0"), None);
        assert_eq!(ascii_text(b"SN \n"), None);
        assert_eq!(ascii_text(&[b'a', 0xff, b' ']), None);
    }
}
