"""What nodes that come and go rest on, in our nouns: `pods` and `nodes` of the whole cluster, followed; `drivers`, who
else moves machines here; `policies`, what people asked for; `sight`, all of it at one instant."""
