package rest

import "net/http"

// deleteTopic deletes a topic with all that it has.
func deleteTopic(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	topic, err := topicOf(r)
	if err == nil {
		_, err = parameters(r)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusNoContent}, access.Operator.DeleteTopic(r.Context(), topic)
}
