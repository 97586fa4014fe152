//! Scratch buffers that are reused from command to command.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A slot's scratch list, on loan across awaits. It is returned on drop, whether the command completes or is
/// cancelled.
pub(crate) struct Scratch<'a, T> {
    home: &'a RefCell<Vec<T>>,
    list: Vec<T>,
}

impl<'a, T> From<&'a RefCell<Vec<T>>> for Scratch<'a, T> {
    fn from(home: &'a RefCell<Vec<T>>) -> Scratch<'a, T> {
        Scratch { home, list: home.take() }
    }
}

impl<'a> Scratch<'a, u8> {
    /// Takes the buffer and grows it to at least `bytes` bytes.
    pub fn with_room(home: &'a RefCell<Vec<u8>>, bytes: u32) -> Scratch<'a, u8> {
        let mut buffer = Scratch::from(home);
        let room = buffer.len().max(bytes as usize);
        buffer.resize(room, 0);
        buffer
    }
}

impl<T> Deref for Scratch<'_, T> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.list
    }
}

impl<T> DerefMut for Scratch<'_, T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.list
    }
}

impl<T> Drop for Scratch<'_, T> {
    fn drop(&mut self) {
        self.home.replace(std::mem::take(&mut self.list));
    }
}
