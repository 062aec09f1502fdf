"""The programming model: vertex types, graphs and programs, and the chunks that they are cut into."""
