//! Polling of a controller's register during enable and disable.

use bus::HostPort;
use runtime::Span;

const POLL: Span = Span::us(10);

/// Polls a register until `found` returns a value; returns the last register value after `limit`, or at once
/// if the device is gone.
pub async fn until<P: HostPort, T>(
    port: &P,
    register: u32,
    limit: Span,
    mut found: impl FnMut(u32) -> Option<T>,
) -> Result<T, u32> {
    let deadline = port.rt().now() + limit;
    loop {
        let value = port.read32(register).await;
        if let Some(found) = found(value) {
            return Ok(found);
        }
        if port.is_gone() || value == u32::MAX || port.rt().now() >= deadline {
            return Err(value);
        }
        port.rt().sleep(POLL).await;
    }
}
