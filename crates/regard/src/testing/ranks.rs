//! Two training processes, simulated by threads.

use std::sync::{Arc, Barrier, Mutex};

use crate::Error;
use crate::train::Ranks;

/// Two processes as two threads, which meet at a barrier and sum their arrays.
pub struct ThreadRanks {
    rank: usize,
    barrier: Arc<Barrier>,
    room: Arc<Mutex<[Vec<u8>; 2]>>,
}

impl ThreadRanks {
    pub fn pair() -> [Self; 2] {
        let (barrier, room) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::default()));
        [0, 1].map(|rank| Self { rank, barrier: Arc::clone(&barrier), room: Arc::clone(&room) })
    }

    fn exchange(&self, own: Vec<u8>) -> [Vec<u8>; 2] {
        self.room.lock().unwrap()[self.rank] = own;
        self.barrier.wait();
        let both = self.room.lock().unwrap().clone();
        self.barrier.wait();
        both
    }
}

impl Ranks for ThreadRanks {
    fn rank(&self) -> usize {
        self.rank
    }
    fn count(&self) -> usize {
        2
    }
    fn sum(&self, values: &mut [f32]) -> Result<(), Error> {
        let both = self.exchange(values.iter().flat_map(|value| value.to_le_bytes()).collect());
        let [first, second] = both.map(|bytes| {
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect::<Vec<f32>>()
        });
        for ((value, first), second) in values.iter_mut().zip(first).zip(second) {
            *value = first + second;
        }
        Ok(())
    }
    fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        let [first, _] = self.exchange(bytes);
        Ok(first)
    }
}
