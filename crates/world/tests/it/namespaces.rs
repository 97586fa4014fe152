//! Several namespaces in the driver: each is a block device, all over one queue pair.

use std::rc::Rc;

use bus::sim::SimHost;
use host::nvme::Queue;
use host::{BlockDevice, Kind};
use plan::Plan;
use runtime::Log;
use testing::{controller, in_sim, plan, queue};
use wire::{Lba, Nsid};
use world::interfaces::NVME;

async fn moved(queue: &Rc<Queue<SimHost>>, lba: u64, write: Option<u8>) -> Result<Vec<u8>, Kind> {
    let bytes = queue.geometry().block_bytes as usize;
    let buffer = queue.buffer(bytes).expect("host memory");
    buffer.copy_in(0, &vec![write.unwrap_or(0xee); bytes]);
    let (buffer, result) = match write {
        Some(_) => queue.write(Lba(lba), buffer, false).await,
        None => queue.read(Lba(lba), buffer).await,
    };
    let mut data = vec![0; bytes];
    buffer.copy_out(0, &mut data);
    result.map(|()| data).map_err(|error| error.kind)
}

#[test]
fn each_namespace_is_a_block_device() {
    let plan = plan("live", &[("device.namespaces", "3"), ("medium.capacity", "24 MiB")]);
    in_sim(NVME, &plan, Log::Off, async |_, driver, _| {
        let (controller, first) = (controller(&driver), queue(&driver));
        assert_eq!(controller.active_namespaces().await.unwrap(), [1, 2, 3].map(Nsid));
        let mut disks = vec![first.clone()];
        for nsid in [2, 3] {
            disks.push(controller.on_namespace(&first, Nsid(nsid)).await.expect("it is active"));
        }
        for (number, disk) in (1..).zip(&disks) {
            assert_eq!((disk.nsid(), disk.qid()), (Nsid(u32::from(number)), first.qid()));
            let geometry = disk.geometry();
            assert_eq!(geometry.blocks * u64::from(geometry.block_bytes), 8 << 20);
            moved(disk, 5, Some(number)).await.unwrap();
            moved(disk, geometry.blocks - 1, Some(number + 10)).await.unwrap();
        }
        controller.reset().await.expect("a reset");
        for (number, disk) in (1_u8..).zip(&disks) {
            let last = disk.geometry().blocks - 1;
            assert!(moved(disk, 5, None).await.unwrap().iter().all(|byte| *byte == number));
            assert!(moved(disk, last, None).await.unwrap().iter().all(|byte| *byte == number + 10));
            assert!(moved(disk, last + 1, None).await.is_err(), "a block of the next namespace");
        }
        let nowhere = controller.on_namespace(&first, Nsid(4)).await;
        assert!(nowhere.is_err_and(|error| error.to_string().contains("NSZE")));
    });
}

#[test]
fn namespace_count_outside_1_to_16_is_rejected() {
    for number in ["0", "17", "\"many\""] {
        let errors = Plan::open("live", &[("device.namespaces", number)]).expect_err("refused");
        let error = errors.to_string();
        assert!(error.ends_with("expected a whole number from 1 to 16"), "{error}");
    }
}
