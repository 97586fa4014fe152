//! Windows: sizing and address assignment. Each address space is laid out separately: the windows behind a
//! bridge form one window of the bridge, up to the root complex, whose ranges are given.

use alloc::vec::Vec;

use bus::pci::ConfigAccess;
use wire::pci::{Bdf, Space, Window, bar, command, offset};

use super::{Bar, Function, Tree, What, change_command};

/// Address ranges that the root complex forwards to its buses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rooms {
    /// I/O ports.
    pub io: Window,
    /// Memory below 4 GiB.
    pub memory: Window,
    /// Memory above 4 GiB, for windows that may be there.
    pub wide: Window,
}

/// Class and subclass of the host bridge, whose registers belong to the board and are not changed.
const HOST_BRIDGE: u32 = 0x06_0000;

/// A window to be placed.
#[derive(Clone, Copy)]
struct Wanted {
    function: usize,
    /// Index in the function's list.
    bar: usize,
    bytes: u64,
}

/// Sizes all windows, places them, and writes the registers. Functions stay disabled; bridges forward to what
/// is behind them.
pub(super) async fn place(bus: &impl ConfigAccess, rooms: &Rooms, tree: &mut Tree) {
    for index in 0..tree.functions.len() {
        size(bus, index, tree).await;
    }
    for (space, room) in
        [(Space::Io, rooms.io), (Space::Memory, rooms.memory), (Space::Prefetchable, rooms.wide)]
    {
        lay_out(space, room, rooms, tree);
    }
    for function in &tree.functions {
        write(bus, function).await;
    }
}

/// Sizes a function's windows. Disables the function.
async fn size(bus: &impl ConfigAccess, index: usize, tree: &mut Tree) {
    let (at, layout) = (tree.functions[index].at, tree.functions[index].header.layout);
    if tree.functions[index].header.class & !0xff == HOST_BRIDGE {
        return;
    }
    change_command(bus, at, 0, command::IO | command::MEMORY).await;
    let (mut number, mut bars) = (0, Vec::new());
    while number < layout.bars() {
        let register = offset::BARS as u16 + 4 * u16::from(number);
        let low = ones(bus, at, register).await;
        let pair = bar::is_wide(low) && number + 1 < layout.bars();
        let high = if pair { Some(ones(bus, at, register + 4).await) } else { None };
        match bar::size(low, high) {
            Ok(Some(request)) => bars.push(Bar { number, request, at: None }),
            Ok(None) => {}
            Err(error) => tree.trouble(at, What::Bar { number, error }),
        }
        number += 1 + u8::from(pair);
    }
    if bus.config_read(at, 0).await == u32::MAX {
        tree.trouble(at, What::Gone);
        bars.clear();
    }
    if tree.functions[index].is_bridge() {
        size_bridge(bus, &mut tree.functions[index]).await;
    }
    tree.functions[index].bars = bars;
}

/// Writes all ones to a register, returns the value read back, and restores the register.
async fn ones(bus: &impl ConfigAccess, at: Bdf, register: u16) -> u32 {
    let before = bus.config_read(at, register).await;
    bus.config_write(at, register, u32::MAX).await;
    let read = bus.config_read(at, register).await;
    bus.config_write(at, register, before).await;
    read
}

/// Detects a bridge's windows. The memory window is mandatory; the others exist if their limits read back as
/// written.
async fn size_bridge(bus: &impl ConfigAccess, function: &mut Function) {
    let at = function.at;
    // The secondary status shares the dword of the I/O window and is write-one-to-clear.
    bus.config_write(at, offset::IO_BASE, 0xf0f0).await;
    let io = bus.config_read(at, offset::IO_BASE).await & 0xf0f0 == 0xf0f0;
    bus.config_write(at, offset::PREFETCHABLE_BASE, 0xfff0_fff0).await;
    let word = bus.config_read(at, offset::PREFETCHABLE_BASE).await;
    let prefetchable = word & 0xfff0_fff0 == 0xfff0_fff0;
    let closed = |there: bool| there.then_some(Window::CLOSED);
    function.windows = [closed(io), closed(true), closed(prefetchable)];
    function.wide = prefetchable && word & 0xf == 1;
}

/// Range of the root complex for a window. `None` if a bridge in front of it has no window of this kind.
fn home(tree: &Tree, function: &Function, bar: &Bar, rooms: &Rooms) -> Option<Space> {
    let mut bridges = core::iter::successors(tree.parent(function), |b| tree.parent(b));
    let room = |window: Window| window.limit.saturating_sub(window.base);
    match bar.request.space {
        Space::Io => bridges.all(|b| b.windows[0].is_some()).then_some(Space::Io),
        // Non-prefetchable windows behind a bridge must be below 4 GiB. On a root bus they may be above.
        Space::Memory if bar.request.wide && function.parent.is_none() => {
            let low = bar.request.bytes <= room(rooms.memory) / 4;
            Some(if low { Space::Memory } else { Space::Prefetchable })
        }
        Space::Prefetchable if bar.request.wide && bridges.all(|b| b.wide) => {
            Some(Space::Prefetchable)
        }
        Space::Memory | Space::Prefetchable => Some(Space::Memory),
    }
}

/// Places all windows of one kind, without the longest ones if the space is too small.
fn lay_out(space: Space, room: Window, rooms: &Rooms, tree: &mut Tree) {
    let (mut wanted, mut refused) = (Vec::new(), Vec::new());
    for (index, function) in tree.functions.iter().enumerate() {
        for (bar, own) in function.bars.iter().enumerate() {
            match home(tree, function, own, rooms) {
                Some(home) if home == space => {
                    wanted.push(Wanted { function: index, bar, bytes: own.request.bytes });
                }
                None if space == Space::Io => refused.push((function.at, *own)),
                _ => {}
            }
        }
    }
    refused.into_iter().for_each(|(at, bar)| tree.trouble(at, What::NoPorts { bar }));
    // Longest first: windows are aligned to their length, so this leaves no gaps.
    wanted.sort_by_key(|wanted| (core::cmp::Reverse(wanted.bytes), wanted.function, wanted.bar));
    let parents: Vec<Option<usize>> = tree.functions.iter().map(|f| f.parent).collect();
    let fits = |skip: usize| arrange(&parents, &wanted[skip..], space, room);
    // Number of longest windows to skip, by binary search, as there may be thousands.
    let (mut out, mut enough) = (0, wanted.len());
    if fits(0).is_some() {
        enough = 0;
    }
    while out < enough {
        let middle = out + (enough - out) / 2;
        match fits(middle) {
            Some(_) => enough = middle,
            None => out = middle + 1,
        }
    }
    let (places, windows) = fits(enough).unwrap_or_default();
    for wanted in &wanted[..enough] {
        let function = &tree.functions[wanted.function];
        let (at, bar) = (function.at, function.bars[wanted.bar]);
        tree.trouble(at, What::NoRoom { bar });
    }
    for (wanted, place) in wanted[enough..].iter().zip(places) {
        tree.functions[wanted.function].bars[wanted.bar].at = Some(place);
    }
    for (bridge, window) in windows {
        tree.functions[bridge].windows[space as usize] = Some(window);
    }
}

/// An item on a bus: a window, or a bridge's window.
struct Item {
    what: Lying,
    bytes: u64,
    align: u64,
}

enum Lying {
    Wanted(usize),
    Bridge(usize),
}

/// Addresses of windows, and windows of bridges.
type Places = (Vec<u64>, Vec<(usize, Window)>);

/// Places windows on their buses, and bridges' windows on theirs. `None` if the space is too small.
fn arrange(
    parents: &[Option<usize>],
    wanted: &[Wanted],
    space: Space,
    room: Window,
) -> Option<Places> {
    let root = parents.len();
    let mut buses: Vec<Vec<Item>> = (0..=root).map(|_| Vec::new()).collect();
    for (index, wanted) in wanted.iter().enumerate() {
        let on = parents[wanted.function].unwrap_or(root);
        let (bytes, align) = (wanted.bytes, wanted.bytes);
        buses[on].push(Item { what: Lying::Wanted(index), bytes, align });
    }
    // Bridges come before what is behind them.
    for bridge in (0..root).rev() {
        if let Some((bytes, align)) = extent(&mut buses[bridge])? {
            let align = align.max(space.granule());
            let bytes = bytes.checked_next_multiple_of(space.granule())?;
            let on = parents[bridge].unwrap_or(root);
            buses[on].push(Item { what: Lying::Bridge(bridge), bytes, align });
        }
    }
    let mut places = alloc::vec![0; wanted.len()];
    let mut windows = Vec::new();
    let mut begins = alloc::vec![0; root];
    extent(&mut buses[root])?;
    for on in core::iter::once(root).chain(0..root) {
        let mut at = if on == root { room.base } else { begins[on] };
        for item in &buses[on] {
            at = at.checked_next_multiple_of(item.align)?;
            match item.what {
                Lying::Wanted(index) => places[index] = at,
                Lying::Bridge(bridge) => {
                    begins[bridge] = at;
                    windows.push((bridge, Window::of(at, item.bytes)));
                }
            }
            if on == root && !room.holds(at, item.bytes) {
                return None;
            }
            at = at.checked_add(item.bytes)?;
        }
    }
    Some((places, windows))
}

/// Sorts a bus's items by alignment; returns their total length and largest alignment. Inner `None` if there
/// are no items; outer `None` on overflow of the address space.
#[expect(clippy::option_option, reason = "nothing to place is no failure")]
fn extent(items: &mut [Item]) -> Option<Option<(u64, u64)>> {
    items.sort_by_key(|item| core::cmp::Reverse(item.align));
    let mut end = 0_u64;
    for item in &*items {
        end = end.checked_next_multiple_of(item.align)?.checked_add(item.bytes)?;
    }
    Some(items.first().map(|first| (end, first.align)))
}

/// Writes the assigned addresses to the registers.
async fn write(bus: &impl ConfigAccess, function: &Function) {
    for bar in &function.bars {
        let Some(place) = bar.at else { continue };
        let register = offset::BARS as u16 + 4 * u16::from(bar.number);
        bus.config_write(function.at, register, place as u32).await;
        if bar.request.wide {
            bus.config_write(function.at, register + 4, (place >> 32) as u32).await;
        }
    }
    if function.buses.is_none() {
        return;
    }
    for space in Space::ALL {
        let Some(window) = function.windows[space as usize] else { continue };
        let (low, base, limit) = window.to_words(space);
        match space {
            Space::Io => {
                bus.config_write(function.at, offset::IO_BASE, low).await;
                bus.config_write(function.at, offset::IO_UPPER, base | limit << 16).await;
            }
            Space::Memory => bus.config_write(function.at, offset::MEMORY_BASE, low).await,
            Space::Prefetchable => {
                bus.config_write(function.at, offset::PREFETCHABLE_UPPER, base).await;
                bus.config_write(function.at, offset::PREFETCHABLE_UPPER + 4, limit).await;
                bus.config_write(function.at, offset::PREFETCHABLE_BASE, low).await;
            }
        }
    }
    // A bridge stays disabled if a window of its own has no address.
    if function.bars.iter().all(|bar| bar.at.is_some()) {
        let on = command::IO | command::MEMORY | command::BUS_MASTER;
        change_command(bus, function.at, on, 0).await;
    }
}
