//! Identity of a logical unit from the data of its NVMe controller.

use wire::nvme::identify::{IdentifyController, IdentifyNamespace};
use wire::scsi::inquiry::{Identity, Rotation};

/// Identity of a namespace (translation reference, "Standard INQUIRY" and "Vital Product Data").
///
/// The vendor is "NVMe", the product is the beginning of the model number, the revision is the last four
/// characters of the firmware revision.
pub fn of_nvme(controller: &IdentifyController, namespace: &IdentifyNamespace) -> Identity {
    let mut identity = Identity {
        vendor: *b"NVMe    ",
        product: [b' '; 16],
        revision: [b' '; 4],
        serial: [b' '; 20],
        eui64: (namespace.eui64 != [0; 8]).then_some(namespace.eui64),
        nguid: (namespace.nguid != [0; 16]).then_some(namespace.nguid),
        rotation: Rotation::None,
    };
    copy_ascii(&mut identity.product, &controller.mn);
    copy_ascii(&mut identity.serial, &controller.sn);
    let end = controller.fr.iter().rposition(|byte| !b" \0".contains(byte)).map_or(0, |at| at + 1);
    copy_ascii(&mut identity.revision, &controller.fr[end.saturating_sub(4)..end]);
    identity
}

/// Copies as many characters as fit; replaces those that are not printable by blanks.
fn copy_ascii(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = if (0x20..0x7f).contains(from) { *from } else { b' ' };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn inquiry_strings_follow_translation_reference() {
        let mut controller = IdentifyController::new_zeroed();
        controller.mn = *b"An SSD whose model number is quite long!";
        controller.sn = *b"S12345678\0          ";
        controller.fr = *b"8DV101  ";
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.eui64 = [1; 8];
        let identity = of_nvme(&controller, &namespace);
        assert_eq!(&identity.vendor, b"NVMe    ");
        assert_eq!(&identity.product, b"An SSD whose mod");
        assert_eq!(&identity.revision, b"V101");
        assert_eq!(&identity.serial, b"S12345678           ");
        assert_eq!((identity.eui64, identity.nguid), (Some([1; 8]), None));
        controller.fr = *b"A1      ";
        assert_eq!(&of_nvme(&controller, &namespace).revision, b"A1  ");
    }
}
