use super::*;
use crate::Pass;
use crate::device;
use crate::plan::capture::capture;
use crate::plan::lower::lower;
use crate::plan::run::{Schedule, run};
use crate::plan::tests::{assert_same, drawn, families};
use crate::testing::{random, values};

#[test]
fn every_pass_leaves_the_numbers_as_they_are() {
    device::cpu().seed(1);
    for (config, [channels, rows, columns]) in families() {
        let model = drawn(&config);
        let shape = [1, channels, rows, columns];
        let captured =
            capture(&model, shape, |model, images| vec![model.forward(images, &mut Pass::silent()).into_dispatch()]);
        let mut graph = lower(captured.unwrap()).unwrap();
        let input = values(&random(shape, 1));
        let now = |graph: &Graph| run(graph, &Schedule::of(graph), &input, true, None).swap_remove(0);
        let before = now(&graph);
        for (index, pass) in ALL.iter().enumerate() {
            pass(&mut graph);
            assert_same(&now(&graph), &before, &format!("pass {index} of {config:?}"));
        }
    }
}
