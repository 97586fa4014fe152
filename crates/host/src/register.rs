//! Waiting for a register of a controller that is being enabled or disabled.

use bus::HostPort;
use runtime::Span;

/// How often a register is asked meanwhile.
const POLL: Span = Span::us(10);

/// Waits until a register's value is what `found` looks for, for no longer than this; else gives the last
/// value. A device that is gone is not waited for.
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
