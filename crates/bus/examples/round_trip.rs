//! A doorbell and its answer between two threads on the live bus, the time of one trip measured:
//!
//! ```sh
//! cargo run --release -p doorbell-bus --example round_trip
//! ```

use bus::live::Shared;
use bus::{DevicePort, HostPort};
use runtime::{Log, Rt, STD_CLOCK};
use wire::BusAddr;

const TRIPS: u32 = 1000;
const DOORBELL: u32 = 0x1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shared = Shared::between_threads(1 << 20, BusAddr(1 << 32), 8192)?;
    let far = shared.clone();
    let host = Rt::live(&STD_CLOCK, None, Log::Off);
    let port = shared.host(&host);
    // The device writes where it is told: the bus validates the address.
    let answer = port.arena().buffer(64)?;
    let at = answer.at();
    let device = std::thread::spawn(move || {
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let port = far.device(&rt);
        rt.block_on(async {
            for trip in 1..=TRIPS {
                port.on_registers(|| (port.load(DOORBELL) == trip).then_some(())).await;
                port.publish(at, &[trip.to_le_bytes(), trip.to_le_bytes()].concat(), false)
                    .expect("an address in host memory");
            }
        });
    });
    let begin = host.now();
    host.block_on(async {
        for trip in 1..=TRIPS {
            port.write32(DOORBELL, trip);
            // The last word of what was published is its flag.
            port.on_memory(at, 8, || (answer.load_u32(4) == trip).then_some(())).await;
        }
    });
    let each = host.now().since(begin) / u64::from(TRIPS);
    device.join().expect("the device ends after the last trip");
    println!("{TRIPS} round trips, {:.3} us each", each.as_us_f64());
    Ok(())
}
