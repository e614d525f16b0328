module sluice.example/linearizability

go 1.24

require github.com/anishathalye/porcupine v1.1.0
