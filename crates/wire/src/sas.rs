//! Lengths on a link of Serial Attached SCSI: frames of its protocol for SCSI, SSP (T10, Serial Attached
//! SCSI 2, INCITS 457). In bytes behind the line code, primitives included; nothing here is parsed.

/// SOF and EOF, or SOAF and EOAF: a primitive before a frame, and one behind it.
const DELIMITERS: u32 = 8;
/// Header of an SSP frame, and its CRC.
const HEADER: u32 = 24 + 4;
/// COMMAND information unit with a CDB of 16 bytes.
const COMMAND: u32 = 28;
/// XFER_RDY information unit.
const XFER_RDY: u32 = 12;
/// RESPONSE information unit without sense data.
const RESPONSE: u32 = 24;
/// OPEN address frame with its CRC, and behind all frames DONE and CLOSE.
const CONNECTION: u32 = 32 + DELIMITERS + 2 * PRIMITIVE;
const PRIMITIVE: u32 = 4;

/// Most data bytes of a frame.
pub const DATA_MAX: u32 = 1024;

const fn frame(unit: u32) -> u32 {
    DELIMITERS + HEADER + unit
}

/// To the target: the connection, and the command in it.
pub const fn command() -> u32 {
    CONNECTION + frame(COMMAND)
}

/// From the target: it accepts the data of a write.
pub const fn transfer_ready() -> u32 {
    frame(XFER_RDY)
}

/// From the target: the connection, and the status in it.
pub const fn response() -> u32 {
    CONNECTION + frame(RESPONSE)
}

/// Either way: `bytes` data bytes in frames of at most [`DATA_MAX`].
pub const fn data(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(DATA_MAX as u64) * frame(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_lengths_include_delimiters_header_and_crc() {
        assert_eq!((command(), transfer_ready(), response()), (48 + 64, 48, 48 + 60));
        assert_eq!(data(0), 0);
        assert_eq!(data(512), 512 + 36);
        assert_eq!(data(1024), 1024 + 36);
        assert_eq!(data(1025), 1025 + 72);
    }
}
