    // A place in the queue of responses is reserved for every request in flight and every response: so that queue
    // never overflows.
    logic [15:0] in_flight;
    logic began = 1'b0;

    always_comb begin
        in_flight = '0;
        for (int i = 0; i < SLOTS; i = i + 1) in_flight = in_flight + 16'(busy[i]);
    end

    always_ff @(posedge clock) began <= 1'b1;

    always_comb begin
        if (!began) assume (reset);
        // A completion is of a request in flight: identifiers see to it.
        if (done_valid) assume (busy[done_slot]);
        // Control begins one and drops the rest of another in different states.
        if (drop_valid) assume (busy[drop_slot] && !begin_valid);
        if (began) begin
            assert (16'(reserved) == in_flight + 16'(responses) + 16'(answers));
            assert (reserved <= PLACES);
            assert (!(answers && responses == PLACES));
            assert (!(begins && busy[begin_slot]));
            assert (!(ends && refuses));
            assert (!(ended && !answers));
        end
    end
