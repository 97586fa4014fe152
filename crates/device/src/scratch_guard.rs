//! Room that is kept from command to command.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A list that a slot keeps, lent out for the time of some awaits: its room is given back whether the
/// journey comes to its end or is cut.
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
    /// A buffer, with room for so many bytes at least.
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
