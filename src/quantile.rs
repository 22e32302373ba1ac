//! Quantiles of samples.

/// The smallest of the sorted samples that at least `percent` of 100 do not exceed; there must be one at least.
pub fn nearest_rank<T: Copy>(sorted: &[T], percent: usize) -> T {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_sample_that_the_share_does_not_exceed() {
        assert_eq!(nearest_rank(&[7], 0), 7);
        assert_eq!(nearest_rank(&[1, 2], 50), 1);
        assert_eq!(nearest_rank(&[1, 2, 3], 50), 2);
        assert_eq!(nearest_rank(&[1, 2, 3], 99), 3);
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(nearest_rank(&hundred, 99), 99);
        assert_eq!(nearest_rank(&hundred, 100), 100);
    }
}
