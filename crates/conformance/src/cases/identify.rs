//! Identify: NVMe base 2.0, 5.17.

use wire::Nsid;
use wire::nvme::admin::{self, Command, Identify, Request};
use wire::nvme::entry::DataPointer;
use wire::nvme::identify::{IdDescriptors, IdentifyNamespace, ascii_text, cns, csi, oncs};
use wire::nvme::registers::VS;
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use crate::bench::Bench;
use crate::case::{Section, cases};
use crate::verdict::{Stop, Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "5.17",
    title: "Identify",
    cases: cases! {
        None identify_writes_all_of_its_page "an Identify structure is 4,096 bytes, all of them written";
        None identify_across_two_pages "the structure may lie across two memory pages";
        None identify_to_nowhere
            "pointers within a dword, or past host memory: an error status, and the next works";
        None serial_and_model_are_ascii "SN, MN and FR are printable ASCII, padded with blanks";
        None entry_sizes_are_possible "SQES and CQES allow entries of 64 and of 16 bytes";
        None reserved_bytes_are_zeros "reserved bytes of Identify Controller are zeros";
        None controller_type "from 1.4 on CNTRLTYPE is 1: an I/O controller";
        None subsystem_has_a_name
            "from 1.2.1 on SUBNQN is text that begins with nqn. and ends with a zero";
        None nn_covers_the_active "no active namespace has a number above NN";
        None power_state_zero "the first power state is operational, and there are at most 32";
        None temperatures_are_ordered "where both are given, WCTEMP is not above CCTEMP";
        None mdts_is_the_same_each_time "Identify says the same each time";
        None active_list_rises "the list of active namespaces rises, and ends with zeros";
        None active_list_after_the_last "asked for those after the last: none";
        None active_list_of_no_sense "after FFFFFFFEh: Invalid Namespace or Format";
        None inactive_namespace_is_zeros "an inactive namespace is a structure of zeros";
        None namespace_above_nn "a namespace above NN: Invalid Namespace or Format";
        None common_to_all_namespaces
            "of FFFFFFFFh: what all have in common, or refused without management";
        None sizes_are_ordered "NUSE, NCAP and NSZE are in this order";
        None format_in_use_is_one_of_them "FLBAS names a format that there is, of 512 bytes or more";
        None descriptors_are_of_sense
            "from 1.3 on a namespace has a lasting name, and descriptors of right lengths";
        None descriptors_agree_with_identify "EUI64 and NGUID are those of Identify Namespace";
        None descriptors_of_nothing
            "of a namespace that there is not: Invalid Namespace or Format, or Invalid Field";
        None reserved_structures_are_refused "a CNS that is reserved: Invalid Field";
        None optional_sizes_agree "MSSRL, MCL and MSRC are given where there is a Copy";
    },
}];

async fn identify_writes_all_of_its_page(b: &mut Bench) -> Verdict {
    let at = b.pages(3)?;
    b.store_bytes(at, &vec![0xd7; 3 * b.page_bytes as usize]);
    let middle = wire::BusAddr(at.0 + b.page_bytes);
    let data = b.data(middle, 4096)?;
    b.admin_ok(&admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, data)).await?;
    let structure = b.bytes(middle, 4096);
    // Reserved: zeros, whatever the buffer held.
    hold!(structure[384..512].iter().all(|byte| *byte == 0), "bytes 384 to 511 were not written");
    let around = [at, wire::BusAddr(middle.0 + 4096)];
    let kept = |at| b.bytes(at, 64).iter().all(|byte| *byte == 0xd7);
    hold!(around.into_iter().all(kept), "bytes beside the structure were written");
    Ok(())
}

async fn identify_across_two_pages(b: &mut Bench) -> Verdict {
    let expected = b.identify(Nsid::NONE, cns::CONTROLLER).await?;
    for offset in [4, 512, b.page_bytes - 4] {
        let at = wire::BusAddr(b.pages(2)?.0 + offset);
        let data = b.data(at, 4096)?;
        b.admin_ok(&admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, data)).await?;
        hold!(b.bytes(at, 4096) == expected, "it differs at offset {offset} of a page");
    }
    Ok(())
}

async fn identify_to_nowhere(b: &mut Bench) -> Verdict {
    let (at, past) = (b.pages(1)?, b.past_memory());
    let odd = [Status::INVALID_PRP_OFFSET, Status::INVALID_FIELD];
    let nowhere = [Status::DATA_TRANSFER_ERROR, Status::INVALID_FIELD];
    let second = wire::BusAddr(at.0 + 4);
    for (prp1, prp2, with) in [
        (wire::BusAddr(at.0 + 2), wire::BusAddr(0), &odd),
        (second, wire::BusAddr(at.0 + 8), &odd),
        (past, wire::BusAddr(0), &nowhere),
        (second, past, &nowhere),
    ] {
        let data = DataPointer::Prp { prp1, prp2 };
        let sqe = admin::identify(b.cid(), Nsid::NONE, cns::CONTROLLER, data);
        b.admin_ends(&sqe, with).await?;
    }
    b.identify(Nsid::NONE, cns::CONTROLLER).await.map(drop)
}

async fn serial_and_model_are_ascii(b: &mut Bench) -> Verdict {
    for (name, text) in [("SN", &b.id.sn[..]), ("MN", &b.id.mn[..]), ("FR", &b.id.fr[..])] {
        hold!(ascii_text(text).is_some(), "{name} is {text:02x?}");
    }
    Ok(())
}

async fn entry_sizes_are_possible(b: &mut Bench) -> Verdict {
    let (sqes, cqes) = (b.id.sqes, b.id.cqes);
    hold!(sqes & 0xf <= 6 && sqes >> 4 >= 6, "SQES is {sqes:#x}");
    hold!(cqes & 0xf <= 4 && cqes >> 4 >= 4, "CQES is {cqes:#x}");
    Ok(())
}

async fn reserved_bytes_are_zeros(b: &mut Bench) -> Verdict {
    let page = b.identify(Nsid::NONE, cns::CONTROLLER).await?;
    for range in [134..240, 384..512, 564..768, 1024..1792] {
        let name = format!("{range:?}");
        let other = page[range].iter().position(|byte| *byte != 0);
        hold!(other.is_none(), "byte {} of {name} is not zero", other.unwrap_or(0));
    }
    Ok(())
}

async fn controller_type(b: &mut Bench) -> Verdict {
    needs!(b.reg(VS).await >= 0x1_0400, "CNTRLTYPE came with version 1.4");
    hold!(b.id.cntrltype == 1, "CNTRLTYPE is {}", b.id.cntrltype);
    Ok(())
}

async fn subsystem_has_a_name(b: &mut Bench) -> Verdict {
    needs!(b.reg(VS).await >= 0x1_0201, "SUBNQN came with version 1.2.1");
    let name = b.id.subnqn;
    let end = name.iter().position(|byte| *byte == 0);
    let text = std::str::from_utf8(&name[..end.unwrap_or(name.len())]);
    let well = end.is_some() && text.is_ok_and(|text| text.starts_with("nqn."));
    hold!(well, "SUBNQN is {:?}", String::from_utf8_lossy(&name));
    Ok(())
}

async fn nn_covers_the_active(b: &mut Bench) -> Verdict {
    let (active, nn) = (b.active().await?, b.id.nn.get());
    hold!(nn > 0, "NN is 0");
    hold!(active.iter().all(|nsid| nsid.0 <= nn), "NN is {nn}, and {active:?} are active");
    Ok(())
}

async fn power_state_zero(b: &mut Bench) -> Verdict {
    hold!(b.id.npss < 32, "NPSS is {}", b.id.npss);
    let flags = b.id.psd[0].flags;
    hold!(flags & 2 == 0, "power state 0 is not operational");
    Ok(())
}

async fn temperatures_are_ordered(b: &mut Bench) -> Verdict {
    let (warning, critical) = (b.id.wctemp.get(), b.id.cctemp.get());
    needs!(warning > 0 && critical > 0, "WCTEMP and CCTEMP");
    hold!(warning <= critical, "WCTEMP is {warning} K, CCTEMP {critical} K");
    Ok(())
}

async fn mdts_is_the_same_each_time(b: &mut Bench) -> Verdict {
    let first = b.identify(Nsid::NONE, cns::CONTROLLER).await?;
    let second = b.identify(Nsid::NONE, cns::CONTROLLER).await?;
    hold!(first == second, "Identify Controller changed by itself");
    Ok(())
}

async fn list_after(b: &mut Bench, after: u32) -> Verdict<Vec<u32>> {
    let page = b.identify(Nsid(after), cns::ACTIVE_NAMESPACES).await?;
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    Ok(page.chunks_exact(4).map(word).collect())
}

async fn active_list_rises(b: &mut Bench) -> Verdict {
    let list = list_after(b, 0).await?;
    let some = list.iter().take_while(|nsid| **nsid != 0).count();
    hold!(list[..some].windows(2).all(|pair| pair[0] < pair[1]), "{:?}", &list[..some]);
    hold!(list[some..].iter().all(|nsid| *nsid == 0), "numbers behind the list's end");
    Ok(())
}

async fn active_list_after_the_last(b: &mut Bench) -> Verdict {
    let last = b.active().await?.last().map_or(0, |nsid| nsid.0);
    needs!(last < 0xffff_fffe, "a number above all namespaces");
    let list = list_after(b, last).await?;
    hold!(list.iter().all(|nsid| *nsid == 0), "namespaces after {last}");
    Ok(())
}

const NO_NAMESPACE: &[Status] = &[Status::INVALID_NAMESPACE_OR_FORMAT];

async fn refused(b: &mut Bench, nsid: Nsid, cns: u8, with: &[Status]) -> Verdict {
    let at = b.pages(1)?;
    let sqe = admin::identify(b.cid(), nsid, cns, b.data(at, 4096)?);
    b.admin_ends(&sqe, with).await
}

async fn active_list_of_no_sense(b: &mut Bench) -> Verdict {
    for nsid in [0xffff_fffe, 0xffff_ffff] {
        refused(b, Nsid(nsid), cns::ACTIVE_NAMESPACES, NO_NAMESPACE).await?;
    }
    Ok(())
}

async fn inactive_namespace_is_zeros(b: &mut Bench) -> Verdict {
    let active = b.active().await?;
    let inactive = (1..=b.id.nn.get().min(1 << 16)).map(Nsid).find(|nsid| !active.contains(nsid));
    let Some(inactive) = inactive else { return Stop::lacks("an inactive namespace up to NN") };
    let page = b.identify(inactive, cns::NAMESPACE).await?;
    hold!(page.iter().all(|byte| *byte == 0), "namespace {} is not zeros", inactive.0);
    Ok(())
}

async fn namespace_above_nn(b: &mut Bench) -> Verdict {
    let Some(above) = b.id.nn.get().checked_add(1).filter(|nsid| *nsid < u32::MAX - 1) else {
        return Stop::lacks("a namespace identifier above NN");
    };
    refused(b, Nsid(above), cns::NAMESPACE, NO_NAMESPACE).await
}

async fn common_to_all_namespaces(b: &mut Bench) -> Verdict {
    let at = b.pages(1)?;
    let data = b.data(at, 4096)?;
    let sqe = admin::identify(b.cid(), Nsid::BROADCAST, cns::NAMESPACE, data);
    let status = b.admin(&sqe).await?.status();
    if !status.is_ok() {
        hold!(status.kind() == NO_NAMESPACE[0], "{status}");
        return Stop::lacks("Identify Namespace of FFFFFFFFh");
    }
    let page = b.bytes(at, 4096);
    let common = IdentifyNamespace::read_from_bytes(&page).expect("its length");
    hold!(common.nsze.get() == 0, "a size, of all namespaces");
    hold!(common.nlbaf == b.ns.nlbaf && common.lbaf == b.ns.lbaf, "formats that are not common");
    Ok(())
}

async fn sizes_are_ordered(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let (nsze, ncap, nuse) = (b.ns.nsze.get(), b.ns.ncap.get(), b.ns.nuse.get());
    hold!(nuse <= ncap && ncap <= nsze && nsze > 0, "NSZE {nsze}, NCAP {ncap}, NUSE {nuse}");
    Ok(())
}

async fn format_in_use_is_one_of_them(b: &mut Bench) -> Verdict {
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let bytes = b.ns.format().and_then(|format| format.block_bytes());
    hold!(bytes.is_some(), "FLBAS {:#x}, NLBAF {}", b.ns.flbas, b.ns.nlbaf);
    Ok(())
}

async fn descriptors(b: &mut Bench) -> Verdict<IdDescriptors> {
    needs!(b.reg(VS).await >= 0x1_0300, "descriptors came with version 1.3");
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    let page = b.identify(b.nsid, cns::NAMESPACE_DESCRIPTORS).await?;
    let page: &[u8; 4096] = page.as_slice().try_into().expect("its length");
    IdDescriptors::parse(page).or_else(|error| Stop::failed(error.to_string()))
}

async fn descriptors_are_of_sense(b: &mut Bench) -> Verdict {
    let names = descriptors(b).await?;
    let named = names.eui64.is_some() || names.nguid.is_some() || names.uuid.is_some();
    hold!(named, "neither EUI64 nor NGUID nor UUID");
    Ok(())
}

async fn descriptors_agree_with_identify(b: &mut Bench) -> Verdict {
    let names = descriptors(b).await?;
    let eui64 = Some(b.ns.eui64).filter(|eui64| *eui64 != [0; 8]);
    let nguid = Some(b.ns.nguid).filter(|nguid| *nguid != [0; 16]);
    hold!(names.eui64 == eui64, "EUI64 {:02x?}, {eui64:02x?}", names.eui64);
    hold!(names.nguid == nguid, "NGUID {:02x?}, {nguid:02x?}", names.nguid);
    Ok(())
}

async fn descriptors_of_nothing(b: &mut Bench) -> Verdict {
    needs!(b.reg(VS).await >= 0x1_0300, "descriptors came with version 1.3");
    let with = [Status::INVALID_NAMESPACE_OR_FORMAT, Status::INVALID_FIELD];
    refused(b, Nsid::NONE, cns::NAMESPACE_DESCRIPTORS, &with).await
}

async fn reserved_structures_are_refused(b: &mut Bench) -> Verdict {
    for structure in [0x0f, 0x7f, 0xbf] {
        let ask = Identify { cns: structure, csi: csi::NVM, ..Identify::default() };
        let at = b.pages(1)?;
        let (cid, data) = (b.cid(), b.data(at, 4096)?);
        let sqe = Request { cid, nsid: b.nsid, data, command: Command::Identify(ask) }.to_sqe();
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn optional_sizes_agree(b: &mut Bench) -> Verdict {
    needs!(b.id.oncs.get() & oncs::COPY != 0, "ONCS: Copy");
    let (one, all) = (u32::from(b.ns.mssrl.get()), b.ns.mcl.get());
    hold!(one >= 1 && all >= one, "MSSRL is {one}, MCL {all}");
    hold!(b.id.cdfs.get() & 1 == 1, "CDFS is {:#x}", b.id.cdfs.get());
    Ok(())
}
