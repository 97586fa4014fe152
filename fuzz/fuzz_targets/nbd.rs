//! Messages of an NBD client are parsed: options of the negotiation, then requests. `nbd_server` sends the
//! same bytes to a whole server.

use wire::nbd::{Ask, ClientFlags, OptionHeader, REQUEST_BYTES_MAX, Request, option, parse_info};
use zerocopy::FromBytes;

pub fn run(data: &[u8]) {
    let Ok((flags, mut rest)) = ClientFlags::read_from_prefix(data) else { return };
    let _ = flags.flags.get();
    while let Ok((header, behind)) = OptionHeader::read_from_prefix(rest) {
        if !header.is_sound() {
            break;
        }
        let Some((data, behind)) = behind.split_at_checked(header.bytes.get() as usize) else {
            return;
        };
        if let Some((name, infos)) = parse_info(data) {
            let infos = infos.count();
            assert!(name.len() + 2 * infos + 6 == data.len(), "{data:x?}");
        }
        rest = behind;
        if header.option.get() == option::GO {
            break;
        }
    }
    while let Ok((request, behind)) = Request::read_from_prefix(rest) {
        let write = Ask::of(request.kind.get()) == Some(Ask::Write);
        let bytes = if write { request.bytes.get() } else { 0 };
        if !request.is_sound() || bytes > REQUEST_BYTES_MAX {
            return;
        }
        let Some((_, behind)) = behind.split_at_checked(bytes as usize) else { return };
        rest = behind;
    }
}
