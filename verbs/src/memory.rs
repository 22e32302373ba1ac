//! Memory that can be registered.

/// Memory that a [region](crate::Region) can own.
///
/// Implemented for memory that this process alone can map:
///
/// | type | what |
/// |---|---|
/// | `Box<[u8]>`, `Vec<u8>` | the heap |
/// | [`Mmap::anonymous`](crate::Mmap::anonymous) | whole pages, zeroed |
/// | [`Mmap::huge`](crate::Mmap::huge) | huge pages, zeroed: fewer entries in the device's tables |
/// | [`MemoryFile`](crate::MemoryFile) | a sealed memory file, of ordinary or huge pages, which peers on `soft0` map instead of having bytes copied |
/// | [`StaticMemory`] | a `&'static mut [u8]` that was given away |
///
/// Maps of ordinary files and memory shared with others do not qualify: others can write and truncate them.
///
/// # Safety
/// Until the value is dropped, and for ever if it is forgotten:
/// * `as_ptr()..as_ptr()+len()` is mapped, initialised and stays where it is, also when the value is moved;
/// * both functions return the same each time, and do not depend on `&self` being borrowed for longer than the call;
/// * nobody but the holder of the value writes the memory.
pub unsafe trait Memory: Send + 'static {
    /// First byte.
    fn as_ptr(&self) -> *mut u8;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory that the value owns exclusively, so that its holder may write it.
///
/// # Safety
/// While the value exists, no reference to the memory exists that is not borrowed from the value, and the pointer of
/// [`Memory::as_ptr`] may be written through. All bytes are valid contents.
pub unsafe trait MemoryMut: Memory {}

// SAFETY: the heap block does not move with the vector, and only its owner reaches it.
unsafe impl Memory for Vec<u8> {
    fn as_ptr(&self) -> *mut u8 {
        Vec::as_ptr(self).cast_mut()
    }
    fn len(&self) -> usize {
        Vec::len(self)
    }
}
// SAFETY: a vector owns its block; its own pointer was made for writing.
unsafe impl MemoryMut for Vec<u8> {}

// SAFETY: the heap block does not move with the box, and only its owner reaches it.
unsafe impl Memory for Box<[u8]> {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: a box is represented as a pointer. It is read as one, because a reference in between would not be good
        // for writing.
        unsafe { std::ptr::from_ref(self).cast::<*mut [u8]>().read().cast() }
    }
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}
// SAFETY: a box owns its block.
unsafe impl MemoryMut for Box<[u8]> {}

/// A static buffer that was given away for good.
///
/// A type of its own, because a trait method `len` on `&mut [u8]` itself would get in the way of the slice's.
#[derive(Debug)]
pub struct StaticMemory(&'static mut [u8]);

impl From<&'static mut [u8]> for StaticMemory {
    fn from(memory: &'static mut [u8]) -> StaticMemory {
        StaticMemory(memory)
    }
}

impl StaticMemory {
    /// The buffer.
    pub fn into_inner(self) -> &'static mut [u8] {
        self.0
    }
}

// SAFETY: static memory neither moves nor ends, and whoever holds the only mutable reference is its owner.
unsafe impl Memory for StaticMemory {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: a reference is represented as a pointer; read as one for the reason above.
        unsafe {
            std::ptr::from_ref(&self.0)
                .cast::<*mut [u8]>()
                .read()
                .cast()
        }
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}
// SAFETY: the reference is exclusive.
unsafe impl MemoryMut for StaticMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved_and_written<M: MemoryMut>(m: M, len: usize) {
        let (p, boxed) = (m.as_ptr(), Box::new(m));
        assert_eq!(
            (boxed.as_ptr(), boxed.len(), boxed.is_empty()),
            (p, len, len == 0)
        );
        if len > 0 {
            // SAFETY: the contract under test.
            unsafe { p.add(len - 1).write(7) };
        }
    }

    #[test]
    fn addresses_survive_moves() {
        moved_and_written(vec![1u8; 10], 10);
        moved_and_written(vec![1u8; 10].into_boxed_slice(), 10);
        moved_and_written(StaticMemory::from(Vec::leak(vec![1u8; 10])), 10);
        moved_and_written(Vec::new(), 0);
        moved_and_written(crate::Mmap::anonymous(4096).unwrap(), 4096);
    }
}
