use super::*;

const BASE: BusAddr = BusAddr(0x1_0000_0000);

#[test]
fn access_outside_memory_is_out_of_range() {
    let memory = Memory::private(4096, BASE);
    let mut byte = [0];
    assert!(memory.read(BusAddr(BASE.0 + 4095), &mut byte).is_ok());
    for at in [BASE.0 + 4096, BASE.0 - 1, 0, u64::MAX] {
        assert_eq!(
            memory.read(BusAddr(at), &mut byte),
            Err(OutOfRange { at: BusAddr(at), bytes: 1 })
        );
    }
    assert!(memory.write(BusAddr(BASE.0 + 4090), &[0; 7]).is_err());
    assert!(memory.zero(BASE, usize::MAX).is_err());
    assert!(memory.load_u32(BusAddr(BASE.0 + 4096)).is_err());
    assert!(memory.load_u64(BusAddr(BASE.0 + 4096)).is_err());
    memory.store_u64(BusAddr(BASE.0 + 4088), 1 << 32 | 7).unwrap();
    assert_eq!(memory.load_u64(BusAddr(BASE.0 + 4088)), Ok(1 << 32 | 7));
    assert_eq!(memory.load_u32(BusAddr(BASE.0 + 4092)), Ok(1));
}

/// The ordering that every protocol here relies on, for Miri and for hardware.
#[test]
fn write_before_release_visible_after_acquire() {
    let memory = Memory::private(4096, BASE);
    let writer = memory.clone();
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=rounds {
                writer.write(BusAddr(BASE.0 + 64), &[round as u8; 64]).unwrap();
                writer.store_u32(BASE, round).unwrap();
                while writer.load_u32(BusAddr(BASE.0 + 4)).unwrap() != round {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=rounds {
            while memory.load_u32(BASE).unwrap() != round {
                std::thread::yield_now();
            }
            let mut data = [0; 64];
            memory.read(BusAddr(BASE.0 + 64), &mut data).unwrap();
            assert_eq!(data, [round as u8; 64]);
            memory.store_u32(BusAddr(BASE.0 + 4), round).unwrap();
        }
    });
}
