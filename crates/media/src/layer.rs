//! Media that stand on other media: a [`Layer`] names what it changes, an [`either!`](crate::either) nothing.

use core::future::Future;

use crate::Media;

/// Calls a macro of this crate with every method of [`Media`]: those that return at once, and those that are
/// awaited.
#[doc(hidden)]
#[macro_export]
macro_rules! media_methods {
    ($then:path; $($with:tt)*) => {
        $then! {
            $($with)*
            now {
                blocks() -> u64;
                block_bytes() -> u32;
                runs(at: $crate::Extent, put: &mut dyn FnMut(u32, &[u8]))
                    -> Result<(), $crate::MediaError>;
                head() -> Option<$crate::Head>;
                ready_within() -> Option<$crate::runtime::Span>;
                is_immediate() -> bool;
                blank_from(block: u64) -> u64;
                labels() -> Option<&dyn $crate::Labels>;
                metadata() -> Option<&dyn $crate::BlockMetadata>;
                purge() -> $crate::Purge<'_>;
            }
            later {
                read(at: $crate::Extent) -> Result<$crate::runtime::Time, $crate::MediaError>;
                write(at: $crate::Extent, data: &[u8]) -> Result<(), $crate::MediaError>;
                flush() -> Result<(), $crate::MediaError>;
                ready() -> ();
                read_head(at: $crate::Extent, bytes: u32)
                    -> Result<$crate::runtime::Time, $crate::MediaError>;
                deallocate(at: $crate::Extent) -> Result<(), $crate::MediaError>;
            }
        }
    };
}

macro_rules! layer {
    (
        now { $($now:ident($($name:ident: $type:ty),*) -> $gives:ty;)* }
        later { $($later:ident($($named:ident: $typed:ty),*) -> $given:ty;)* }
    ) => {
        /// A medium that stands on one other, and is like it but for the methods that it has itself.
        pub trait Layer: 'static {
            /// What it stands on.
            type Beneath: Media;

            /// What it stands on.
            fn beneath(&self) -> &Self::Beneath;

            $(
                #[doc = concat!("[`Media::", stringify!($now), "`], as beneath.")]
                #[inline]
                fn $now(&self $(, $name: $type)*) -> $gives {
                    self.beneath().$now($($name),*)
                }
            )*
            $(
                #[doc = concat!("[`Media::", stringify!($later), "`], as beneath.")]
                #[inline]
                fn $later(&self $(, $named: $typed)*) -> impl Future<Output = $given> {
                    self.beneath().$later($($named),*)
                }
            )*
        }

        impl<L: Layer> Media for L {
            $(
                #[inline]
                fn $now(&self $(, $name: $type)*) -> $gives {
                    Layer::$now(self $(, $name)*)
                }
            )*
            $(
                #[inline]
                fn $later(&self $(, $named: $typed)*) -> impl Future<Output = $given> {
                    Layer::$later(self $(, $named)*)
                }
            )*
        }
    };
}
media_methods!(layer;);

/// Makes an enumeration a medium: the one that it holds. Takes its name, a name for what it holds, and a
/// pattern for each variant, which binds that name.
#[macro_export]
macro_rules! either {
    ($of:ident, $medium:ident: $($pattern:pat),+) => {
        $crate::media_methods!($crate::either_impl; $of ($medium: $($pattern),+));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! either_impl {
    (
        $of:ident $arms:tt
        now { $($now:ident($($name:ident: $type:ty),*) -> $gives:ty;)* }
        later { $($later:ident($($named:ident: $typed:ty),*) -> $given:ty;)* }
    ) => {
        impl $crate::Media for $of {
            $(
                #[inline]
                fn $now(&self $(, $name: $type)*) -> $gives {
                    $crate::either_held!(self $arms $now($($name),*))
                }
            )*
            $(
                #[inline]
                async fn $later(&self $(, $named: $typed)*) -> $given {
                    $crate::either_held!(self $arms $later($($named),*) await)
                }
            )*
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! either_held {
    ($self:ident ($medium:ident: $($pattern:pat),+) $call:ident $with:tt) => {
        match $self { $($pattern => $medium.$call $with,)+ }
    };
    ($self:ident ($medium:ident: $($pattern:pat),+) $call:ident $with:tt await) => {
        match $self { $($pattern => $medium.$call $with.await,)+ }
    };
}
