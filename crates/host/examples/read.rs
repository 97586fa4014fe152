//! Writes and reads the first block of an SSD that another process serves, by the NVMe driver:
//!
//! ```sh
//! doorbell serve live --shm target/ssd.sock &
//! cargo run -p doorbell-host --example read -- target/ssd.sock
//! ```

use std::path::Path;

use bus::live;
use host::BlockDevice;
use host::nvme::{Controller, Options, QueueOptions};
use runtime::{Log, Rt, STD_CLOCK};
use wire::{BusAddr, Lba};

/// Memory that the driver shares with the device: queues and buffers. Its bus address is chosen by the host.
const MEMORY_BYTES: usize = 16 << 20;
const MEMORY_BASE: BusAddr = BusAddr(1 << 32);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args().nth(1).ok_or("expected the path of a server's socket")?;
    // The connection ends with `_client`.
    let (shared, _client) = live::connect(Path::new(&socket), MEMORY_BYTES, MEMORY_BASE)?;
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    rt.block_on(async {
        let controller = Controller::start(shared.host(&rt), Options::default()).await?;
        let queue = controller.queue(QueueOptions::default()).await?;
        let geometry = queue.geometry();
        println!("{} blocks of {} bytes", geometry.blocks, geometry.block_bytes);

        let buffer = queue.buffer(geometry.block_bytes as usize)?;
        buffer.copy_in(0, b"hello, drive");
        // A buffer is given away with the command, and comes back with its result.
        let (buffer, written) = queue.write(Lba(0), buffer, false).await;
        written?;
        buffer.copy_in(0, &[0; 12]);
        let (buffer, read) = queue.read(Lba(0), buffer).await;
        read?;
        let mut text = [0; 12];
        buffer.copy_out(0, &mut text);
        println!("{}", String::from_utf8_lossy(&text));
        controller.shutdown().await?;
        Ok(())
    })
}
