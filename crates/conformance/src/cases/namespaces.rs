//! Namespace Attachment and Management: NVMe base 2.0, 5.22 and 5.23.

use wire::Nsid;
use wire::nvme::admin;
use wire::nvme::entry::Sqe;
use wire::nvme::identify::{IdentifyNamespace, NamespaceList, cns, oacs};
use wire::nvme::io;
use wire::nvme::opcode;
use wire::nvme::status::Status;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::bench::{Bench, noise};
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

const BASE: &str = "NVMe base 2.0";

pub(super) const SECTIONS: &[Section] = &[
    Section {
        of: BASE,
        number: "5.22",
        title: "Namespace Attachment",
        cases: cases! {
            None attached_twice "one that is attached: Namespace Already Attached";
            None attached_to_no_controller
                "an empty list of controllers: Controller List Invalid or Invalid Field";
            None attached_to_another
                "a controller that there is not: Controller List Invalid or Invalid Field";
            None attachment_of_reserved_selection "SEL 2 to 15: Invalid Field";
            Erases detached_then_attached
                "detached it is inactive, its data stay; detached twice: Namespace Not Attached";
        },
    },
    Section {
        of: BASE,
        number: "5.23",
        title: "Namespace Management",
        cases: cases! {
            None management_of_reserved_selection "SEL 2 to 15: Invalid Field";
            None created_too_large "more than there is: Namespace Insufficient Capacity";
            None created_of_no_format "a format that there is not: Invalid Format";
            None created_of_nothing "NSZE of zero: Invalid Field, or a status of its own";
            None deleted_where_there_is_none "a number above NN: Invalid Namespace or Format";
            Erases created_is_not_attached "a new namespace is allocated, and not active";
            Erases two_for_one "two where one was, each with blocks of its own, then one again";
        },
    },
];

fn managing(b: &Bench) -> Verdict {
    needs!(b.id.oacs.get() & oacs::NAMESPACE_MANAGEMENT != 0, "OACS: Namespace Management");
    needs!(b.nsid != Nsid::NONE, "an active namespace");
    Ok(())
}

/// Command that creates a namespace of `blocks` blocks in format `flbas`.
fn creation(b: &Bench, blocks: u64, flbas: u8) -> Verdict<Sqe> {
    let mut wanted = IdentifyNamespace::new_zeroed();
    (wanted.nsze, wanted.ncap, wanted.flbas) = (blocks.into(), blocks.into(), flbas);
    let at = b.pages(1)?;
    b.store_bytes(at, wanted.as_bytes());
    Ok(admin::create_namespace(b.cid(), b.data(at, 4096)?))
}

/// Command that attaches a namespace to these controllers, or detaches it.
fn attachment(b: &Bench, nsid: Nsid, attach: bool, controllers: &[u16]) -> Verdict<Sqe> {
    let at = b.pages(1)?;
    let list = [&[controllers.len() as u16], controllers].concat();
    b.store_bytes(at, list.as_bytes());
    Ok(admin::attach_namespace(b.cid(), nsid, attach, b.data(at, 4096)?))
}

async fn attach(b: &mut Bench, nsid: Nsid, attach: bool) -> Verdict {
    let sqe = attachment(b, nsid, attach, &[b.id.cntlid.get()])?;
    b.admin_ok(&sqe).await.map(drop)
}

async fn attached_twice(b: &mut Bench) -> Verdict {
    managing(b)?;
    let sqe = attachment(b, b.nsid, true, &[b.id.cntlid.get()])?;
    b.admin_ends(&sqe, &[Status::NAMESPACE_ALREADY_ATTACHED]).await
}

const NO_LIST: &[Status] = &[Status::CONTROLLER_LIST_INVALID, Status::INVALID_FIELD];

async fn attached_to_no_controller(b: &mut Bench) -> Verdict {
    managing(b)?;
    let sqe = attachment(b, b.nsid, false, &[])?;
    b.admin_ends(&sqe, NO_LIST).await
}

async fn attached_to_another(b: &mut Bench) -> Verdict {
    managing(b)?;
    let sqe = attachment(b, b.nsid, false, &[0xfff0])?;
    b.admin_ends(&sqe, NO_LIST).await
}

async fn reserved_selection(b: &mut Bench, opcode: u8) -> Verdict {
    managing(b)?;
    for selection in [2_u32, 7, 15] {
        let at = b.pages(1)?;
        let base = admin::attach_namespace(b.cid(), b.nsid, true, b.data(at, 4096)?);
        let sqe = Sqe { opcode, cdw10: selection.into(), ..base };
        b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await?;
    }
    Ok(())
}

async fn attachment_of_reserved_selection(b: &mut Bench) -> Verdict {
    reserved_selection(b, opcode::admin::NAMESPACE_ATTACHMENT).await
}

async fn management_of_reserved_selection(b: &mut Bench) -> Verdict {
    reserved_selection(b, opcode::admin::NAMESPACE_MANAGEMENT).await
}

async fn detached_then_attached(b: &mut Bench) -> Verdict {
    managing(b)?;
    let mut pair = b.plain_io().await?;
    let (nsid, data) = (b.nsid, noise(70, 4 * b.block()));
    b.write(&mut pair, 10, &data).await?;
    attach(b, nsid, false).await?;
    let active = b.active().await?;
    hold!(!active.contains(&nsid), "it is active: {active:?}");
    let inactive = [Status::INVALID_FIELD, Status::INVALID_NAMESPACE_OR_FORMAT];
    b.ends(&mut pair, &io::flush(b.cid(), nsid), &inactive).await?;
    let again = attachment(b, nsid, false, &[b.id.cntlid.get()])?;
    b.admin_ends(&again, &[Status::NAMESPACE_NOT_ATTACHED]).await?;
    attach(b, nsid, true).await?;
    b.holds(&mut pair, 10, &data).await
}

async fn created_too_large(b: &mut Bench) -> Verdict {
    managing(b)?;
    let sqe = creation(b, u64::MAX / 4096, b.ns.flbas & 0xf)?;
    b.admin_ends(&sqe, &[Status::NAMESPACE_INSUFFICIENT_CAPACITY]).await
}

async fn created_of_no_format(b: &mut Bench) -> Verdict {
    managing(b)?;
    needs!(b.ns.nlbaf < 15, "a format above NLBAF");
    let sqe = creation(b, 8, b.ns.nlbaf + 1)?;
    b.admin_ends(&sqe, &[Status::INVALID_FORMAT]).await
}

async fn created_of_nothing(b: &mut Bench) -> Verdict {
    managing(b)?;
    let sqe = creation(b, 0, b.ns.flbas & 0xf)?;
    let status = b.admin(&sqe).await?.status();
    hold!(!status.is_ok(), "a namespace of no blocks was made");
    Ok(())
}

async fn deleted_where_there_is_none(b: &mut Bench) -> Verdict {
    managing(b)?;
    let nsid = Nsid(b.id.nn.get().saturating_add(1));
    needs!(nsid.0 < u32::MAX - 1, "a number above NN");
    let sqe = admin::delete_namespace(b.cid(), nsid);
    b.admin_ends(&sqe, &[Status::INVALID_NAMESPACE_OR_FORMAT, Status::INVALID_FIELD]).await
}

async fn delete(b: &mut Bench, nsid: Nsid) -> Verdict {
    let sqe = admin::delete_namespace(b.cid(), nsid);
    b.admin_ok(&sqe).await.map(drop)
}

async fn create(b: &mut Bench, blocks: u64) -> Verdict<Nsid> {
    let sqe = creation(b, blocks, b.ns.flbas & 0xf)?;
    Ok(Nsid(b.admin_ok(&sqe).await?))
}

async fn created_is_not_attached(b: &mut Bench) -> Verdict {
    managing(b)?;
    let (old, size) = (b.nsid, b.ns.nsze.get());
    delete(b, old).await?;
    let nsid = create(b, size).await?;
    let page = b.identify(Nsid::NONE, cns::ALLOCATED_NAMESPACES).await?;
    let list = NamespaceList::read_from_bytes(&page).expect("its length");
    let (allocated, active) = (list.iter().any(|one| one == nsid), b.active().await?);
    attach(b, nsid, true).await?;
    hold!(allocated, "it is not among the allocated");
    hold!(!active.contains(&nsid), "it is active before it was attached: {active:?}");
    let active = b.active().await?;
    hold!(active.contains(&nsid), "it is not active though attached: {active:?}");
    Ok(())
}

async fn two_for_one(b: &mut Bench) -> Verdict {
    managing(b)?;
    let (old, size) = (b.nsid, b.ns.nsze.get());
    needs!(size >= 64 && b.id.nn.get() >= 2, "room for two");
    delete(b, old).await?;
    let mut two = Vec::new();
    for _ in 0..2 {
        let nsid = create(b, (size / 2) & !7).await?;
        attach(b, nsid, true).await?;
        two.push(nsid);
    }
    let told = each_has_its_own(b, &two).await;
    for nsid in two {
        delete(b, nsid).await?;
    }
    let nsid = create(b, size).await?;
    attach(b, nsid, true).await?;
    told
}

async fn each_has_its_own(b: &mut Bench, two: &[Nsid]) -> Verdict {
    let mut pair = b.plain_io().await?;
    for nsid in two {
        b.nsid = *nsid;
        b.write(&mut pair, 7, &noise(u64::from(nsid.0), b.block())).await?;
    }
    for nsid in two {
        b.nsid = *nsid;
        b.holds(&mut pair, 7, &noise(u64::from(nsid.0), b.block())).await?;
    }
    Ok(())
}
