//! The test picture of the gallery, drawn by a fixed formula.

/// Pixels from top to bottom and from left to right.
pub const SIDE: usize = 64;

/// An RGB picture in planes `[3, H, W]`, values from 0 to 1.
#[derive(Clone, Debug)]
pub struct Picture {
    pub rows: usize,
    pub columns: usize,
    pub planes: Vec<f32>,
}

impl Picture {
    fn draw(rows: usize, columns: usize, colour: impl Fn(f32, f32) -> [f32; 3]) -> Self {
        let mut planes = vec![0.0; 3 * rows * columns];
        for row in 0..rows {
            for column in 0..columns {
                for (channel, value) in colour(row as f32, column as f32).into_iter().enumerate() {
                    planes[(channel * rows + row) * columns + column] = value;
                }
            }
        }
        Self { rows, columns, planes }
    }

    pub fn pixel(&self, row: usize, column: usize) -> [f32; 3] {
        [0, 1, 2].map(|channel| self.planes[(channel * self.rows + row) * self.columns + column])
    }

    /// Four pictures of the same size as one of twice the size.
    pub fn four(pictures: &[Self; 4]) -> Self {
        let (rows, columns) = (pictures[0].rows, pictures[0].columns);
        Self::draw(2 * rows, 2 * columns, |row, column| {
            let (row, column) = (row as usize, column as usize);
            pictures[2 * (row / rows) + column / columns].pixel(row % rows, column % columns)
        })
    }

    /// The picture with noise of a given standard deviation.
    pub fn noisy(&self, sigma: f32) -> Self {
        // the sum of twelve uniform numbers is nearly normal; uniform in [-1, 1) has variance 1/3
        let noise = noise(12 * self.planes.len(), 3);
        let planes = self.planes.iter().zip(noise.chunks_exact(12)).map(|(value, noise)| {
            let bell = noise.iter().sum::<f32>() / 2.0;
            (value + sigma * bell).clamp(0.0, 1.0)
        });
        Self { planes: planes.collect(), ..*self }
    }
}

/// Two red discs, a blue square and stripes on a plain background.
pub fn picture() -> Picture {
    Picture::draw(SIDE, SIDE, |row, column| {
        let disc = |middle: (f32, f32), radius: f32| (row - middle.0).hypot(column - middle.1) < radius;
        if disc(RED, 11.0) || disc((14.0, 50.0), 7.0) {
            [0.85, 0.2, 0.15]
        } else if (36.0..58.0).contains(&row) && (6.0..28.0).contains(&column) {
            [0.15, 0.3, 0.8]
        } else if (34.0..60.0).contains(&row) && (36.0..60.0).contains(&column) {
            if (column as usize / 3).is_multiple_of(2) { [0.95, 0.9, 0.6] } else { [0.2, 0.35, 0.2] }
        } else {
            let light = 0.55 + 0.25 * row / SIDE as f32;
            [light, light, 0.95 * light]
        }
    })
}

/// Row and column of the centre of the large disc: the query.
pub const RED: (f32, f32) = (18.0, 20.0);

/// Four frames of half the size: a disc that rolls to the right over a fixed square.
pub fn clip() -> [Picture; 4] {
    [0.0, 1.0, 2.0, 3.0].map(|time| {
        Picture::draw(SIDE / 2, SIDE / 2, |row, column| {
            if (row - 10.0).hypot(column - 6.0 - 6.0 * time) < 5.0 {
                [0.85, 0.2, 0.15]
            } else if (20.0..29.0).contains(&row) && (6.0..15.0).contains(&column) {
                [0.15, 0.3, 0.8]
            } else {
                [0.65, 0.65, 0.6]
            }
        })
    })
}

/// Uniform random numbers in [-1, 1) from a seed.
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}
