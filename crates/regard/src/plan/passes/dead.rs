//! Nodes whose outputs nobody reads go.

use crate::plan::graph::Graph;

pub(crate) fn remove(graph: &mut Graph) {
    let mut read = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|&output| read[output] = true);
    let mut live = Vec::new();
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.outputs.iter().any(|&output| read[output]) {
            node.inputs.iter().for_each(|&input| read[input] = true);
            live.push(node);
        }
    }
    live.reverse();
    graph.nodes = live;
    // constants that nobody reads would keep their memory
    for (value, _) in graph.values.iter_mut().zip(read).filter(|(_, read)| !read) {
        value.constant = None;
    }
}
