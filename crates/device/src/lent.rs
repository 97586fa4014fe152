//! Room that is kept from command to command.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A list that a slot keeps, lent out for the time of some awaits: its room is given back whether the
/// journey comes to its end or is cut.
pub(crate) struct Lent<'a, T> {
    home: &'a RefCell<Vec<T>>,
    list: Vec<T>,
}

impl<'a, T> From<&'a RefCell<Vec<T>>> for Lent<'a, T> {
    fn from(home: &'a RefCell<Vec<T>>) -> Lent<'a, T> {
        Lent { home, list: home.take() }
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.list
    }
}

impl<T> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.list
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        self.home.replace(std::mem::take(&mut self.list));
    }
}
