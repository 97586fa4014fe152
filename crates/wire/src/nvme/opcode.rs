//! Opcodes. A name here does not imply that a parser supports the command.

macro_rules! opcodes {
    ($($value:literal $name:ident $text:literal;)+) => {
        $(#[doc = concat!($text, ".")] pub const $name: u8 = $value;)+

        /// All opcodes and their names in the specification, in ascending order.
        pub const NAMED: &[(u8, &str)] = &[$(($value, $text)),+];

        /// Name of an opcode in the specification.
        pub fn name(opcode: u8) -> Option<&'static str> {
            NAMED.iter().find(|(value, _)| *value == opcode).map(|(_, name)| *name)
        }
    };
}

/// Admin commands (NVMe base 2.0, 5).
pub mod admin {
    opcodes! {
        0x00 DELETE_SQ "Delete I/O Submission Queue";
        0x01 CREATE_SQ "Create I/O Submission Queue";
        0x02 GET_LOG_PAGE "Get Log Page";
        0x04 DELETE_CQ "Delete I/O Completion Queue";
        0x05 CREATE_CQ "Create I/O Completion Queue";
        0x06 IDENTIFY "Identify";
        0x08 ABORT "Abort";
        0x09 SET_FEATURES "Set Features";
        0x0a GET_FEATURES "Get Features";
        0x0c ASYNC_EVENT_REQUEST "Asynchronous Event Request";
        0x0d NAMESPACE_MANAGEMENT "Namespace Management";
        0x10 FIRMWARE_COMMIT "Firmware Commit";
        0x11 FIRMWARE_DOWNLOAD "Firmware Image Download";
        0x14 SELF_TEST "Device Self-test";
        0x15 NAMESPACE_ATTACHMENT "Namespace Attachment";
        0x18 KEEP_ALIVE "Keep Alive";
        0x7c DOORBELL_BUFFER_CONFIG "Doorbell Buffer Config";
        0x80 FORMAT_NVM "Format NVM";
        0x81 SECURITY_SEND "Security Send";
        0x82 SECURITY_RECEIVE "Security Receive";
        0x84 SANITIZE "Sanitize";
        0xc0 COLLECT "Collect Superblock (vendor specific)";
    }
}

/// I/O commands (NVMe base 2.0, 7, and NVM command set 1.0, 3.2).
pub mod io {
    opcodes! {
        0x00 FLUSH "Flush";
        0x01 WRITE "Write";
        0x02 READ "Read";
        0x04 WRITE_UNCORRECTABLE "Write Uncorrectable";
        0x05 COMPARE "Compare";
        0x08 WRITE_ZEROES "Write Zeroes";
        0x09 DATASET_MANAGEMENT "Dataset Management";
        0x0c VERIFY "Verify";
        0x0d RESERVATION_REGISTER "Reservation Register";
        0x0e RESERVATION_REPORT "Reservation Report";
        0x11 RESERVATION_ACQUIRE "Reservation Acquire";
        0x15 RESERVATION_RELEASE "Reservation Release";
        0x19 COPY "Copy";
        0xc2 READ_PLACED "Read Placed (vendor specific)";
        0xc6 READ_MAP "Read Map (vendor specific)";
    }

    /// True if the entry of this command gives blocks: SLBA in dwords 10 and 11, NLB in dword 12.
    pub fn names_blocks(opcode: u8) -> bool {
        [READ, WRITE, WRITE_UNCORRECTABLE, COMPARE, VERIFY, WRITE_ZEROES, READ_PLACED, READ_MAP]
            .contains(&opcode)
    }
}

#[cfg(test)]
mod tests {
    use super::{admin, io};

    #[test]
    fn opcodes_are_sorted_and_named() {
        for table in [admin::NAMED, io::NAMED] {
            assert!(table.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
        assert_eq!(admin::name(0x06), Some("Identify"));
        assert_eq!(io::name(0x02), Some("Read"));
        assert_eq!(io::name(0x03), None);
    }

    /// NVMe base 2.0, 5 and 7: bits 1:0 of an opcode are the data transfer direction.
    #[test]
    fn opcode_low_bits_match_data_direction() {
        const NONE: u8 = 0;
        const TO_CONTROLLER: u8 = 1;
        const TO_HOST: u8 = 2;
        assert_eq!(io::WRITE & 3, TO_CONTROLLER);
        assert_eq!(io::COMPARE & 3, TO_CONTROLLER);
        assert_eq!(io::DATASET_MANAGEMENT & 3, TO_CONTROLLER);
        assert_eq!(io::READ & 3, TO_HOST);
        assert_eq!(io::READ_PLACED & 3, TO_HOST);
        assert_eq!(io::READ_MAP & 3, TO_HOST);
        assert_eq!(admin::IDENTIFY & 3, TO_HOST);
        assert_eq!(admin::GET_LOG_PAGE & 3, TO_HOST);
        assert_eq!(io::WRITE_ZEROES & 3, NONE);
        assert_eq!(admin::ABORT & 3, NONE);
    }
}
