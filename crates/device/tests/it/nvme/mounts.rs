//! Controllers whose medium is mounted before they are ready.

use runtime::Span;
use wire::nvme::registers::{CC, Cc, Csts};

use crate::nvme::sanitize_flash::Kept;
use crate::raw::nvme::Settings;

/// A host that stops waiting clears CC.EN and sets it again. The latest settings apply, and the mount goes on
/// meanwhile.
#[test]
fn enabling_again_during_a_mount_takes_the_latest_settings() {
    Kept::new().live(None, async |rt, raw| {
        let unsupported = Cc::new().with_en(true).with_css(1).with_iosqes(6).with_iocqes(4);
        raw.set(CC, unsupported.into_bits());
        rt.sleep(Span::us(100)).await;
        assert_eq!(raw.csts().await, Csts::new(), "the drive is being mounted");
        raw.set(CC, 0);
        rt.sleep(Span::us(100)).await;
        assert_eq!(raw.csts().await, Csts::new(), "the drive is being mounted");
        raw.enable(Settings::default()).await;
        assert_eq!(raw.csts().await, Csts::new().with_rdy(true));
    });
}
